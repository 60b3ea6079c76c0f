"""As much of an API server as a reflector meets, and everything that it may do wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

GONE = {"kind": "Status", "code": 410, "message": "too old resource version"}


class ApiServer:
    """Objects by path; a list of each is the truth, a watch says what the test says."""

    def __init__(self) -> None:
        self.port = 0
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.version = 1
        self.status = 200
        """Of every answer."""
        self.watch_status = 200
        self.ends_watches = False
        """Ends each as soon as it has begun."""
        self.token = ""
        """The only one that is let in; empty lets all in."""
        self.asked: list[tuple[str, dict[str, str]]] = []
        """Path and query of each request."""
        self.watches: dict[str, list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, path: str, *, watch: bool) -> int:
        """Returns how often a path was listed, or watched."""
        return sum(path == p and ("watch" in query) == watch for p, query in self.asked)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Dies: connections break, and nobody listens."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self.watches.clear()
        await asyncio.sleep(0)

    async def say(self, path: str, kind: str, thing: dict[str, Any]) -> None:
        """Sends an event to all who watch a path."""
        line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
        for writer in self.watches.get(path, []):
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
            await writer.drain()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode(), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head.split(" ")[1])
        query = {key: values[0] for key, values in parse_qs(target.query).items()}
        path = target.path.lstrip("/")
        self.asked.append((path, query))
        status = self.status
        if self.token and f"authorization: bearer {self.token}".lower() not in head.lower():
            status = 401
        if "watch" in query and status == 200:
            status = self.watch_status
        if status != 200:
            await self._send(writer, status, {"kind": "Status", "code": status})
        elif "watch" not in query:
            items = self.lists.get(path, [])
            body = {"metadata": {"resourceVersion": str(self.version)}, "items": items}
            await self._send(writer, 200, body)
        else:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            if self.ends_watches:
                writer.write(b"0\r\n\r\n")
            else:
                self.watches.setdefault(path, []).append(writer)
            await writer.drain()

    async def _send(self, writer: asyncio.StreamWriter, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        writer.write(
            f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        await writer.drain()


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
