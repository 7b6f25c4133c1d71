"""Run the server: bind the address, load the models, serve until a signal."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from firth.embedded import EMBEDDED_MODELS, local_path
from firth.model import Model, default_device, load
from firth.serve.app import make_app
from firth.serve.model_pool import Loader
from firth.serve.server_config import API_KEY, ServeConfig
from firth.utils.arguments import check_arguments
from firth.utils.config_fields import config_of
from firth.utils.devices import Device, Dtype
from firth.utils.errors import FirthError, UsageError

GRACE = 60  # seconds that running requests have after a signal
KEEP_ALIVE = 30  # seconds that an idle connection stays open
UVICORN: dict[str, Any] = {
    "log_level": logging.WARNING,
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": KEEP_ALIVE,
    "timeout_graceful_shutdown": GRACE,
}


@check_arguments
def run_server(
    models: Sequence[str] | Mapping[str, Model] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_origins: Sequence[str] = (),
    allow_hosts: Sequence[str] = (),
    max_request_bytes: int = 2 << 20,
    queue_tokens: int = 0,
    batch_tokens: int = 0,
    max_sequences: int = 32,
    cache_tokens: int = 0,
    timeout: float = 300.0,
    device: Device = None,
    dtype: Dtype = None,
    weights: str | None = None,
    open_page: bool = False,
    show: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Serve models over HTTP until a signal; return the address and the models' names.

    `models` are what `firth.load` accepts, or NAME=MODEL; loaded models by name; or none: the
    embedded models. The API key is in the environment variable FIRTH_API_KEY. `show` gets lines
    about the start; the other options are the fields of `ServeConfig`.
    """
    config = config_of(ServeConfig, locals())
    key = os.environ.get(API_KEY) or None
    config.check_api_key(key)
    loaders: Mapping[str, Model | Loader]
    if isinstance(models, Mapping):
        if dtype is not None or weights is not None or device is not None:
            raise UsageError(
                "`device`, `dtype` and `weights` apply to paths and names; these models are loaded."
            )
        loaders = models
    else:
        how: Any = {"device": default_device(device, weights), "dtype": dtype, "weights": weights}
        loaders = {name: partial(load, one, **how) for name, one in name_models(models).items()}
    if not loaders:
        raise UsageError("`models` is empty: give at least one model.")
    names = ", ".join(loaders)
    bound = bind(config)
    url = address(config.host, bound)
    failed: list[BaseException] = []

    def on_load(error: BaseException | None) -> None:
        if error is not None:
            failed.append(error)
            server.should_exit = True
            return
        show(f"Serving {names} at {url} (Ctrl-C: stop).")
        if open_page:
            webbrowser.open(url)

    app = make_app(loaders, config, api_key=key, on_load=on_load)
    server = QuietServer(uvicorn.Config(app, **UVICORN))
    show(f"Loading {names} …")
    server.run(sockets=[bound])
    if failed:
        raise failed[0]
    return {"url": url, "models": list(loaders)}


class QuietServer(uvicorn.Server):
    """A server that ends normally after SIGINT or SIGTERM, when running requests are finished."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while the server runs; in another thread, the caller does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._stop) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stop accepting requests; a second Ctrl-C does not wait for running ones."""
        self.force_exit = self.should_exit and number == signal.SIGINT
        self.should_exit = True


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def name_models(models: Sequence[str]) -> Mapping[str, str]:
    """Return models by their names in the API: NAME=MODEL, else the last part of a path.

    >>> name_models(["./runs/encoder", "chat=runs/decoder", "org/name"])
    {'encoder': './runs/encoder', 'chat': 'runs/decoder', 'org/name': 'org/name'}
    >>> list(name_models([]))
    ['stories-encoder', 'stories-decoder', 'stories-seq2seq']
    """
    found: dict[str, str] = {}
    for given in models or tuple(EMBEDDED_MODELS):
        name, equals, source = given.partition("=")
        if not equals or local_path(given) is not None:
            name, source = default_name(given), given
        if not name or not source:
            raise UsageError(f"A model is MODEL or NAME=MODEL, not {given!r}.")
        if name in found:
            raise UsageError(f"Two models have the name {name!r}: name one with NAME={source}.")
        found[name] = source
    return found


def default_name(source: str) -> str:
    """Return the name of a model: a hub name as it is, of a path the last part.

    >>> default_name("org/name"), default_name("./runs/encoder"), default_name("model.gguf")
    ('org/name', 'encoder', 'model.gguf')
    """
    is_hub_name = source.count("/") == 1 and source[0] not in "./~" and source[-1] != "/"
    if local_path(source) is None and is_hub_name:
        return source
    return Path(source).resolve().name


def address(host: str, bound: socket.socket) -> str:
    """Return the URL of a server on a bound socket."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"


def bind(config: ServeConfig) -> socket.socket:
    """Return a socket on the server's address; a used port is a usage error."""
    try:
        [(family, *_), *_] = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(" (")[0]
        raise FirthError(
            f"The server cannot listen on {config.host}:{config.port} ({why}): choose another "
            "`port` or `host`."
        ) from error
