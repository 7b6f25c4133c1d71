"""The options of the server."""

from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Annotated

from firth.utils.config_fields import Doc
from firth.utils.errors import UsageError

API_KEY = "FIRTH_API_KEY"  # environment variable
MIN_KEY_LENGTH = 8
_repeatable = partial(Doc, kind=list[str])
ALLOW_ORIGIN = _repeatable(
    "Web page that may call the server from a browser (CORS), such as https://example.org; "
    "repeatable. Default: none.",
    flags="--allow-origin",
    metavar="ORIGIN",
)
ALLOW_HOST = _repeatable(
    "Further name of this server that a request's Host header may have; repeatable. Default: the "
    "address it listens on.",
    flags="--allow-host",
    metavar="NAME",
)


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Address, limits and batching of a server.

    >>> ServeConfig(host="0.0.0.0").is_local, ServeConfig(host="::1").is_local
    (False, True)
    """

    host: Annotated[str, Doc("Address to listen on; others than localhost need an API key.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Doc("Port; 0: any free one.", min=0)] = 8000
    allow_origins: Annotated[tuple[str, ...], ALLOW_ORIGIN] = ()
    allow_hosts: Annotated[tuple[str, ...], ALLOW_HOST] = ()
    max_request_bytes: Annotated[int, Doc("Maximum size of a request in bytes.", min=1)] = 2 << 20
    queue_tokens: Annotated[
        int,
        Doc(
            "Tokens that may wait or run per model; beyond, requests get a 429. 0: eight batches.",
            min=0,
        ),
    ] = 0
    batch_tokens: Annotated[
        int, Doc("Tokens of requests that are computed together; 0: the device's default.", min=0)
    ] = 0
    max_sequences: Annotated[int, Doc("Completions that are generated together.", min=1)] = 32
    cache_tokens: Annotated[
        int, Doc("Tokens in the key/value cache of a model; 0: the device's default.", min=0)
    ] = 0
    timeout: Annotated[float, Doc("Seconds that a request may take, waiting included.")] = 300.0

    def __post_init__(self) -> None:
        for name in ("allow_origins", "allow_hosts"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"`port` must be from 0 to 65,535, not {self.port}.")
        if not 0 < self.timeout < 1e9:
            raise UsageError(f"`timeout` must be a number of seconds above 0, not {self.timeout}.")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check_api_key(self, key: str | None) -> None:
        """Raise a usage error if an API key is needed and missing, or too short."""
        if not key and not self.is_local:
            raise UsageError(
                f"Others can reach a server on {self.host}: set an API key in the environment "
                f"variable {API_KEY}, or use `host=127.0.0.1`."
            )
        if key and len(key) < MIN_KEY_LENGTH:
            raise UsageError(f"{API_KEY} needs at least {MIN_KEY_LENGTH} characters.")
