"""A hub on this machine that says as much of the Hugging Face hub's API as its library asks for.

Small files come from the hub itself; large ones, as on the real hub, from another host that a
redirection names and that must never see the token.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".h5", ".onnx", ".msgpack")
INFO = r"/api/models/(?P<id>[^/]+(/[^/]+)?)(/(?P<what>revision|tree)/(?P<revision>[^/]+))?"
FILE = r"/(?P<id>[^/]+(/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)"


@dataclass
class Repository:
    """Commits with their files, and the branches and tags that name them."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    refusal: tuple[int, dict[str, str]] | None = None  # a status and headers, instead of files
    hidden: bool = False  # whether the refusal is also for what the repository holds
    token: str | None = None  # without it, the repository does not seem to exist

    def push(self, files: Mapping[str, bytes], *names: str) -> str:
        """A new commit, as a branch or a tag."""
        content = repr(sorted(files.items())).encode()
        commit = hashlib.sha1(content).hexdigest()
        self.commits[commit] = dict(files)
        self.names |= dict.fromkeys(names or ("main",), commit)
        return commit


@dataclass
class Hub:
    """The server, what it holds, and what it has been asked for."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)  # method, path
    tokens: set[tuple[str, str | None]] = field(default_factory=set)  # host, token
    breaks: set[str] = field(default_factory=set)  # files whose transfer ends in the middle

    def __post_init__(self) -> None:
        handler = type("Bound", (Handler,), {"hub": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def repository(self, id: str) -> Repository:
        return self.repositories.setdefault(id, Repository())

    def fetched(self) -> list[str]:
        """The files whose content was asked for, in alphabetical order."""
        paths = [path for method, path in self.requests if method == "GET"]
        matches = [
            re.fullmatch(FILE, path) or re.fullmatch(r"/cdn/(?P<file>.+)/\w+", path)
            for path in paths
        ]
        return sorted(match["file"] for match in matches if match)

    def forget(self) -> None:
        self.requests.clear()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        for connection in self.server.connections:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def handle_error(self, *_: Any) -> None:
        pass  # whoever asked has gone


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.hub.requests.append((self.command, urlsplit(self.path).path))
        self.hub.tokens.add((self.headers["Host"].partition(":")[0], token))
        if cdn := re.fullmatch(r"/cdn/(?P<file>.+)/(?P<sum>\w+)", path):
            return self.large(cdn["file"], cdn["sum"])
        raw = urlsplit(self.path).path
        found = re.fullmatch(INFO, raw) or re.fullmatch(FILE, raw)
        if found is None:
            return self.send(404)
        parts = {name: value and unquote(value) for name, value in found.groupdict().items()}
        repository = self.hub.repositories.get(parts["id"])
        if repository is None or repository.token not in (None, token):
            return self.send(401 if token is None else 404, {"X-Error-Code": "RepoNotFound"})
        if repository.refusal and ("file" in parts or repository.hidden):
            return self.send(*repository.refusal)
        revision = parts["revision"] or "main"
        commit = revision if revision in repository.commits else repository.names.get(revision)
        if commit is None:
            return self.send(404, {"X-Error-Code": "RevisionNotFound"})
        files = repository.commits[commit]
        if "file" not in parts:
            return self.describe(parts, commit, files)
        if parts["file"] not in files:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        self.file(parts["file"], files[parts["file"]], commit)

    def describe(self, parts: Mapping[str, Any], commit: str, files: Mapping[str, bytes]) -> None:
        if parts["what"] == "tree":
            value: Any = [
                {"type": "file", "path": name, "size": len(data), "oid": _sum(data)[:40]}
                for name, data in files.items()
            ]
        else:
            siblings = [{"rfilename": name} for name in files]
            value = {"id": parts["id"], "modelId": parts["id"], "sha": commit, "siblings": siblings}
            value |= {"private": False, "downloads": 0, "likes": 0, "tags": []}
        self.send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def file(self, name: str, data: bytes, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_sum(data)[:40]}"'}
        if not name.endswith(LARGE):
            return self.send(200, headers, data)
        place = f"http://localhost:{self.hub.port}/cdn/{name}/{_sum(data)}"
        linked = {"X-Linked-Etag": f'"{_sum(data)}"', "X-Linked-Size": str(len(data))}
        self.send(302, headers | linked | {"Location": place})

    def large(self, name: str, total: str) -> None:
        everything = (f for r in self.hub.repositories.values() for f in r.commits.values())
        data = next(d for files in everything for d in files.values() if _sum(d) == total)
        first = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") :].partition("-")[0])
        headers = {"ETag": f'"{total}"'}
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        cut = (len(data) - first) // 2 if name in self.hub.breaks else None
        self.send(206 if first else 200, headers, data[first:], cut)

    def send(
        self,
        status: int,
        headers: Mapping[str, str] | None = None,
        data: bytes = b"",
        cut: int | None = None,
    ) -> None:
        """An answer; cut off, it breaks after so many bytes."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def files_of(folder: Path) -> dict[str, bytes]:
    """A directory as a repository's files."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
