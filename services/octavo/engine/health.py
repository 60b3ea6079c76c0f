"""Whether the engine makes progress, and the HTTP endpoint that says so.

Health          a turn that does not end makes the engine unwell, however well its loop answers
├ watch         what follows from it: the health service, and the end of a stuck process
└ StatusServer  /healthz, /readyz and /metrics on the engine's own loop

Knows no model and no gRPC.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, OctavoError

TICK_S: Final = 0.25
"""Between two looks at the present turn."""

STALE_S: Final = 30.0
"""Age of a turn that is unwell when there is no watchdog to derive it from."""

REQUEST_S: Final = 5.0
"""Time for a whole exchange with the status server."""

MAX_HEAD_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the engine is."""

    stage: str
    """loading, warming, ready, draining or failed."""
    step: int
    """Steps computed so far."""
    step_age_s: float
    """How long the present turn has lasted; zero between turns."""
    stale_s: float
    """Age from which on a turn is not believed to end."""

    @property
    def alive(self) -> bool:
        """Whether there is progress, or nothing to be done."""
        return self.stage != "failed" and self.step_age_s < self.stale_s

    @property
    def ready(self) -> bool:
        """Whether requests are served."""
        return self.alive and self.stage == "ready"


def stale_after_s(watchdog_s: float) -> float:
    """Returns the age of a stale turn: early enough that probes see it before the watchdog acts."""
    return watchdog_s / 2 or STALE_S


async def watch(
    health: Callable[[], Health], *, limit_s: float, tell: Callable[[bool], Awaitable[None]]
) -> None:
    """Returns once a turn has lasted longer than `limit_s`: the engine is stuck.

    Args:
        health: how it is now.
        limit_s: zero never returns.
        tell: gets whether requests are served, whenever that changes.
    """
    told = False
    while True:
        await asyncio.sleep(TICK_S)
        now = health()
        if now.ready != told:
            told = now.ready
            await tell(told)
        if limit_s and now.step_age_s > limit_s:
            return


class StatusServer:
    """Answers probes and scrapes: GET or HEAD, one request a connection.

    Args:
        registry: what /metrics shows.
        health: how the engine is now.
    """

    def __init__(self, registry: CollectorRegistry, health: Callable[[], Health]) -> None:
        self._registry = registry
        self._health = health
        self._server: asyncio.Server | None = None

    async def start(self, listen: str) -> int:
        """Listens; returns the port.

        Raises:
            OctavoError: BAD_SETTING or PORT_IN_USE.
        """
        host, _, port = listen.rpartition(":")
        if not (port.isascii() and port.isdigit()):
            raise OctavoError(
                BAD_SETTING,
                key="metrics_listen",
                value=listen,
                origin="engine",
                reason="is not HOST:PORT",
            )
        try:
            self._server = await asyncio.start_server(
                self._serve, host.strip("[]") or None, int(port), limit=MAX_HEAD_BYTES
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
            good = health.alive if path == b"/healthz" else health.ready
            status = "200 OK" if good else "503 Service Unavailable"
            kind, body = "application/json", _described(health)
        else:
            status, kind, body = "404 Not Found", "text/plain", b""
        headers = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return headers.encode() + (b"" if method == b"HEAD" else body)


def _described(health: Health) -> bytes:
    shown = {
        "stage": health.stage,
        "step": health.step,
        "step_age_s": round(health.step_age_s, 3),
    }
    return json.dumps(shown).encode() + b"\n"
