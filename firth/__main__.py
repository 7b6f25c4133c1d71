"""`python -m firth` is `firth`."""

from firth.cli import main

main()
