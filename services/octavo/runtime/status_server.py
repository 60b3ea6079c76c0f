"""The HTTP endpoint of a program that has no other: /healthz, /readyz and /metrics.

It is small enough to run on the loop that it reports on, without a framework.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from octavo.runtime.listen_address import listen_address
from octavo.v1.errors import PORT_IN_USE, OctavoError

REQUEST_S: Final = 5.0
"""Time for a whole exchange."""

MAX_HEAD_BYTES: Final = 16 * 1024

_ALL: Final = ("", "0.0.0.0", "::")


class Health(Protocol):
    """How a program is."""

    @property
    def alive(self) -> bool:
        """Whether it is well; otherwise it is worth a new process."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it does its work, as long as it is well."""
        ...

    def shown(self) -> dict[str, object]:
        """Returns what probes are told."""
        ...


class StatusServer:
    """Answers probes and scrapes: GET or HEAD, one request a connection.

    Args:
        registry: what /metrics shows.
        health: how the program is now.
        key: setting that says where to listen.
        origin: whose setting it is.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        health: Callable[[], Health],
        *,
        key: str,
        origin: str,
    ) -> None:
        self._registry = registry
        self._health = health
        self._key = key
        self._origin = origin
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> int:
        """Listens; returns the port.

        Args:
            listen: HOST:PORT. No host, 0.0.0.0 and [::] are all addresses of both families, as they
                are for gRPC: arguments of engines that run name the first, and are reached by IPv6.

        Raises:
            OctavoError: BAD_SETTING or PORT_IN_USE.
        """
        host, port = listen_address(listen, key=self._key, origin=self._origin, may_lack_host=True)
        try:
            self._server = await asyncio.start_server(
                self._serve, None if host in _ALL else host, port, limit=MAX_HEAD_BYTES
            )
        except OSError as error:
            raise OctavoError(PORT_IN_USE, port=port, host=host) from error
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # whoever sends no request or reads no answer gets none
        finally:
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            status, kind, body = "405 Method Not Allowed\r\nAllow: GET, HEAD", "text/plain", b""
        elif path == b"/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        elif path in (b"/healthz", b"/readyz"):
            health = self._health()
            good = health.alive and (health.ready or path == b"/healthz")
            status = "200 OK" if good else "503 Service Unavailable"
            kind, body = "application/json", json.dumps(health.shown()).encode() + b"\n"
        else:
            status, kind, body = "404 Not Found", "text/plain", b""
        headers = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return headers.encode() + (b"" if method == b"HEAD" else body)
