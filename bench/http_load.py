"""Generate load on HTTP servers on this machine and record status, latency and body of the replies.

Closed loop: each of several clients sends its next request when it has received the last reply.
Open loop: requests start at a fixed rate, whether or not replies arrive. Both can be limited in
time. Connections are kept alive between requests.
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
TIMEOUT = 300.0  # seconds for one reply; a slower one counts as failed
START_TIMEOUT = 180.0  # seconds for a server to load its model
STOP_TIMEOUT = 10.0  # seconds for a server to exit after SIGTERM
PAGE_SIZE = 4096  # bytes


class Request(NamedTuple):
    """A POST request with a JSON body."""

    path: str
    payload: dict[str, Any]

    def encode(self) -> bytes:
        """Return the request as the bytes of an HTTP message."""
        body = json.dumps(self.payload).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Reply(NamedTuple):
    """A server's reply; status 0 means that the connection failed or timed out."""

    status: int
    seconds: float
    body: bytes

    def parse_json(self) -> Any:
        """Return the parsed JSON body."""
        return json.loads(self.body)


@dataclass
class LoadResult:
    """The replies to a series of requests, and the time that the series took."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # CPU seconds of the server
    replies: list[Reply] = field(default_factory=list)

    @property
    def status_counts(self) -> Counter[int]:
        """Return the number of replies with each status."""
        return Counter(reply.status for reply in self.replies)

    @property
    def ok_replies(self) -> list[Reply]:
        """Return the replies with status 200."""
        return [reply for reply in self.replies if reply.status == 200]

    @property
    def requests_per_second(self) -> float:
        """Return the successful requests per second."""
        return len(self.ok_replies) / self.seconds

    def latency_percentile(self, percent: float) -> float:
        """Return a percentile (0 to 100) of the successful requests' latency in seconds."""
        latencies = sorted(reply.seconds for reply in self.ok_replies)
        return latencies[min(len(latencies) - 1, int(len(latencies) * percent / 100))]

    @property
    def median_latency(self) -> float:
        """Return the median of the successful requests' latency in seconds."""
        return statistics.median(reply.seconds for reply in self.ok_replies)


class HttpConnection:
    """A connection that is kept open between requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, message: bytes) -> Reply:
        """Send a request and return the reply."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(TIMEOUT):
                status, body = await self._exchange(message)
        except (TimeoutError, OSError, EOFError):
            self.close()
            status, body = 0, b""
        return Reply(status, time.perf_counter() - start, body)

    async def _exchange(self, message: bytes) -> tuple[int, bytes]:
        """Send a message; return the status and the body of the reply."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(HOST, self.port)
        reader, writer = self.streams
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, _, tail = head.partition(b"content-length:")
        content_length = int(tail.split(b"\r\n", 1)[0])
        return int(head.split(None, 2)[1]), await reader.readexactly(content_length)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


@asynccontextmanager
async def open_connection(port: int) -> AsyncIterator[HttpConnection]:
    """Yield a connection and close it afterwards."""
    connection = HttpConnection(port)
    try:
        yield connection
    finally:
        connection.close()


async def closed_loop(
    port: int, requests: Sequence[Request], clients: int, seconds: float = 1e9
) -> LoadResult:
    """Send all requests from several concurrent clients; start none after `seconds`."""
    result, start = LoadResult(), time.perf_counter()
    messages = iter([request.encode() for request in requests])

    async def client() -> None:
        """Send messages one after the other."""
        async with open_connection(port) as connection:
            for message in messages:
                if time.perf_counter() - start > seconds:
                    return
                result.replies.append(await connection.send(message))

    await asyncio.gather(*(client() for _ in range(clients)))
    result.seconds = time.perf_counter() - start
    return result


async def open_loop(
    port: int, requests: Sequence[Request], rate: float, seconds: float
) -> LoadResult:
    """Start `rate` requests per second for `seconds` seconds; return when all have replies."""
    result, start, tasks = LoadResult(), time.perf_counter(), []
    messages = itertools.cycle([request.encode() for request in requests])
    idle: list[HttpConnection] = []

    async def send(message: bytes) -> None:
        """Send a message on an idle connection, or on a new one."""
        connection = idle.pop() if idle else HttpConnection(port)
        result.replies.append(await connection.send(message))
        idle.append(connection)

    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + i / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(send(next(messages))))
    await asyncio.gather(*tasks)
    result.seconds = time.perf_counter() - start
    for connection in idle:
        connection.close()
    return result


class Server(NamedTuple):
    """A running server process."""

    name: str
    port: int
    pid: int

    def rss(self) -> int:
        """Return the resident set size in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_SIZE

    def cpu_seconds(self) -> float:
        """Return the CPU seconds used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextmanager
def run_server(name: str, command: Sequence[str], port: int, probe: Request) -> Iterator[Server]:
    """Start a server, wait until it replies to `probe`, and stop it afterwards."""
    process = subprocess.Popen(command)
    try:
        asyncio.run(_wait_until_ready(process, port, probe))
        yield Server(name, port, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()


async def _wait_until_ready(process: subprocess.Popen[bytes], port: int, probe: Request) -> None:
    """Send `probe` until its reply has status 200; exit if that takes too long."""
    start, message = time.perf_counter(), probe.encode()
    while time.perf_counter() - start < START_TIMEOUT and process.poll() is None:
        async with open_connection(port) as connection:
            if (await connection.send(message)).status == 200:
                return
        await asyncio.sleep(0.2)
    raise SystemExit(f"The server {process.args!r} did not start.")
