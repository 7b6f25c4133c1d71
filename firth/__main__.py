"""Run the `firth` command with `python -m firth`."""

from firth.cli.app import main

main()
