"""A load generator for HTTP servers on this machine: requests bounded in number and time.

Closed loop: so many clients, each sends its next request when it has the last reply. Open loop:
requests begin at a fixed rate, whether or not there are replies.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

HOST = "127.0.0.1"
TIMEOUT = 300.0  # seconds for one reply; one that takes longer counts as a hang
START = 180.0  # seconds for a server to load its model
GRACE = 10.0  # seconds for a server to end
PAGE = 4096


class Request(NamedTuple):
    """A request with a JSON body."""

    path: str
    values: dict[str, Any]

    def message(self) -> bytes:
        """Return the request as HTTP."""
        body = json.dumps(self.values).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Reply(NamedTuple):
    """A server's reply: 0 is a reply that did not come, or not in time."""

    status: int
    seconds: float
    body: bytes

    def values(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.body)


@dataclass
class Load:
    """The replies to many requests, and how long all of them took."""

    seconds: float = 0.0
    cpu: float = 0.0  # seconds of the server's processor time
    replies: list[Reply] = field(default_factory=list)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(reply.status for reply in self.replies)

    @property
    def good(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.status == 200]

    @property
    def rate(self) -> float:
        """Good replies a second."""
        return len(self.good) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return the latency that so many percent of the good replies do not exceed."""
        times = sorted(reply.seconds for reply in self.good)
        return times[min(len(times) - 1, int(len(times) * percent / 100))]

    @property
    def median(self) -> float:
        return statistics.median(reply.seconds for reply in self.good)


class Connection:
    """A connection that is kept open from one request to the next."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, message: bytes) -> Reply:
        """Send a request and wait for the reply."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                status, body = await self._exchange(message)
        except (TimeoutError, OSError, EOFError):
            self.close()
            status, body = 0, b""
        return Reply(status, time.perf_counter() - began, body)

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        if self.streams is None:
            self.streams = await asyncio.open_connection(HOST, self.port)
        reader, writer = self.streams
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, rest = head.partition(b"content-length:")
        size = int(rest.split(b"\r\n", 1)[0])
        return int(head.split(None, 2)[1]), await reader.readexactly(size)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Connection]:
    """Open a connection, and close it at the end."""
    made = Connection(port)
    try:
        yield made
    finally:
        made.close()


async def closed_loop(
    port: int, requests: Sequence[Request], clients: int, seconds: float = 1e9
) -> Load:
    """Send all requests with some clients at once; none begins after so many seconds."""
    load, began = Load(), time.perf_counter()
    waiting = iter([request.message() for request in requests])

    async def client() -> None:
        async with connection(port) as own:
            for message in waiting:
                if time.perf_counter() - began > seconds:
                    return
                load.replies.append(await own.send(message))

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


async def open_loop(port: int, requests: Sequence[Request], rate: float, seconds: float) -> Load:
    """Begin `rate` requests a second for so many seconds."""
    load, began, tasks = Load(), time.perf_counter(), []
    messages = itertools.cycle([request.message() for request in requests])
    free: list[Connection] = []

    async def send(message: bytes) -> None:
        own = free.pop() if free else Connection(port)
        load.replies.append(await own.send(message))
        free.append(own)

    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + i / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(send(next(messages))))
    await asyncio.gather(*tasks)
    load.seconds = time.perf_counter() - began
    for one in free:
        one.close()
    return load


class Server(NamedTuple):
    """A server in a process of its own."""

    name: str
    port: int
    pid: int

    def resident(self) -> int:
        """Return the bytes of its resident set."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE

    def cpu(self) -> float:
        """Return the seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def serving(name: str, command: Sequence[str], port: int, probe: Request) -> Iterator[Server]:
    """Start a server, wait until it answers a request, and end it afterwards."""
    process = subprocess.Popen(command)
    try:
        asyncio.run(_until_ready(process, port, probe))
        yield Server(name, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()


async def _until_ready(process: subprocess.Popen[bytes], port: int, probe: Request) -> None:
    began, message = time.perf_counter(), probe.message()
    while time.perf_counter() - began < START and process.poll() is None:
        async with connection(port) as own:
            if (await own.send(message)).status == 200:
                return
        await asyncio.sleep(0.2)
    raise SystemExit(f"The server {process.args!r} did not start.")
