"""`firth serve`: an HTTP API for models, and a playground page."""

import sys
from typing import Any

from firth.cli import options
from firth.cli.verbs import Output
from firth.serve.server_config import ServeConfig
from firth.utils.errors import UsageError

EXAMPLES = (
    "firth serve",
    "firth serve runs/sentiment chat=HuggingFaceTB/SmolLM2-135M-Instruct --port 8080 --open",
)


@options.with_options(ServeConfig, panel="Server")
def serve(
    models: list[str] = options.Argument(
        None,
        metavar="[MODEL...]",
        help=options.MODEL_HELP
        + " NAME=MODEL gives it a name in the API. Default: the three embedded models.",
    ),
    open_page: bool = options.OutputOption(
        False, "--open", help="Open the playground in a browser."
    ),
    device: str | None = options.DEVICE,
    dtype: str | None = options.DTYPE,
    weights: str | None = options.WEIGHTS,
    **settings: Any,
) -> Output:
    """Serve models over HTTP: OpenAI-compatible routes, those of the verbs, and a playground."""
    try:
        from firth.serve.running import run_server
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in ("starlette", "uvicorn", "prometheus_client", "httptools"):
            raise
        raise UsageError(
            f"`firth serve` needs the package {package}: pip install firth[serve]."
        ) from error
    found = run_server(
        models or (),
        device=device,
        dtype=dtype,
        weights=weights,
        open_page=open_page,
        show=lambda line: print(line, file=sys.stderr, flush=True),
        **settings,
    )
    return Output(found, ["Stopped."])
