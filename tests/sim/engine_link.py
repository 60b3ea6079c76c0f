"""EngineLink over the simulated net, and the engine's end of it: what gRPC does, as measured.

Each stream is a connection whose first message names the method; messages of the engine carry a tag
in front, because a stream may end with a status. Bounds follow the channel and server settings of
`octavo.gateway.grpc_link` and `octavo.engine.server`; test_link_conformance compares both.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Final

from tests.sim.conn import Conn
from tests.sim.net import Net

from octavo.engine.session import EngineShell
from octavo.gateway.link import Duplex, LinkLostError
from octavo.v1.errors import OctavoError

FIRST_PATIENCE_S: Final = 0.2
LAST_PATIENCE_S: Final = 1.0
"""How long gRPC waits for a connection's answer, and before the next try after a failure."""
CLIENT_PINGS: Final = (2.0, 4.0)
SERVER_PINGS: Final = (5.0, 5.0)
_HELLO: Final = b"h"
_MESSAGE: Final = b"m"
_STATUS: Final = b"s"


class SimStream:
    """One call. Made by SimLink."""

    def __init__(self, link: SimLink, conn: Conn, method: bytes) -> None:
        self.conn = conn
        self._link = link
        self._ended: str | None = None
        self._finished = False
        conn.push(method)

    @property
    def is_open(self) -> bool:
        """Whether it has neither ended nor been closed."""
        return self._ended is None and not self.conn.is_over

    async def recv(self) -> bytes | None:
        """See Inbound."""
        if self._finished:
            return None
        if self._ended is not None:
            raise LinkLostError(self._ended)
        try:
            data = await self.conn.recv()
            if data == _HELLO:
                self._link.answered()
                data = await self.conn.recv()
        except ConnectionError as error:
            self.end(f"UNAVAILABLE: {error}")
            raise LinkLostError(self._ended or "") from error
        except asyncio.CancelledError:
            self.close()
            raise
        if data is None:
            self._finished = True
            self.end("the call has ended")
            return None
        if data.startswith(_STATUS):
            self.end(data[1:].decode())
            raise LinkLostError(data[1:].decode())
        return data[1:]

    async def send(self, data: bytes) -> None:
        """See Duplex."""
        try:
            await self.conn.send(data)
        except ConnectionError as error:
            raise LinkLostError(self._ended or f"UNAVAILABLE: {error}") from error
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """See Inbound."""
        self.end("closed")

    def end(self, reason: str) -> None:
        """Breaks it off; the first reason stays."""
        self._ended = self._ended or reason
        self.conn.abort(reason)


class SimLink:
    """The way from one host to the engine at another.

    Args:
        src: the gateway's host.
        dst: the engine's host.
    """

    def __init__(self, net: Net, src: str, dst: str, port: int) -> None:
        self._net = net
        self._way = (src, dst, port)
        self._streams: list[SimStream] = []
        self._began = net.loop.time()
        self._patience_s = FIRST_PATIENCE_S
        self._rests_until = 0.0

    def open_session(self) -> Duplex:
        """See EngineLink."""
        return self._open(b"Session")

    def open_state(self) -> Duplex:
        """See EngineLink."""
        return self._open(b"State")

    def fetch_card(self) -> Duplex:
        """See EngineLink."""
        return self._open(b"Card")

    async def close(self) -> None:
        """See EngineLink."""
        for stream in self._streams:
            stream.close()

    def answered(self) -> None:
        """The engine has answered."""
        self._patience_s = FIRST_PATIENCE_S
        self._rests_until = 0.0

    def _open(self, method: bytes) -> Duplex:
        loop = self._net.loop
        self._streams = [s for s in self._streams if s.is_open]
        connected = any(s.conn.heard for s in self._streams)
        if not connected and loop.time() < self._rests_until:
            return _NoStream()
        conn = self._net.open(*self._way)
        stream = SimStream(self, conn, method)
        conn.watch(functools.partial(self._lost, conn, loop.time()))
        conn.keep_alive(*CLIENT_PINGS, since=self._began)
        if not connected:
            loop.call_later(self._patience_s, self._give_up, stream, loop.time())
        self._streams.append(stream)
        return stream

    def _give_up(self, stream: SimStream, began: float) -> None:
        if stream.is_open and not stream.conn.heard:
            stream.end("UNAVAILABLE: the connection was not answered in time")
            self._rest(began)

    def _lost(self, conn: Conn, began: float) -> None:
        if not conn.heard:
            self._rest(began)

    def _rest(self, began: float) -> None:
        if began >= self._rests_until:  # one failure, however many streams shared it
            self._rests_until = began + self._patience_s
            self._patience_s = min(LAST_PATIENCE_S, self._patience_s * 1.6)


class _NoStream:
    """A call while the channel waits before it tries to connect again: fails at once."""

    async def recv(self) -> bytes | None:
        await asyncio.sleep(0)
        raise LinkLostError("UNAVAILABLE: could not connect a moment ago")

    async def send(self, data: bytes) -> None:
        await self.recv()

    def close(self) -> None:
        """Nothing is open."""


class _Server:
    """The calls of one shell."""

    def __init__(self, net: Net, shell: EngineShell) -> None:
        self._net = net
        self._shell = shell
        self._calls: dict[asyncio.Task[None], Conn] = {}

    def accept(self, conn: Conn) -> None:
        with contextlib.suppress(ConnectionError):  # it may be broken off by now
            conn.push(_HELLO)
        task = self._net.loop.create_task(self._serve(conn))
        self._calls[task] = conn
        task.add_done_callback(self._calls.pop)
        conn.watch(task.cancel)  # as gRPC cancels the handler of a call that broke
        conn.keep_alive(*SERVER_PINGS)

    def stop(self) -> None:
        for task, conn in list(self._calls.items()):
            conn.abort("the server stopped")
            task.cancel()

    async def _serve(self, conn: Conn) -> None:
        try:
            method = await conn.recv()
            pump = {b"Session": self._session, b"State": self._state, b"Card": self._card}
            try:
                await pump[method or b""](conn)
            except OctavoError as error:
                conn.push(_STATUS + f"{error.kind.name}: {error}".encode())
            conn.close()
        except ConnectionError:
            return  # the client has gone
        finally:
            conn.abort()

    async def _session(self, conn: Conn) -> None:
        async def incoming() -> AsyncIterator[bytes]:
            with contextlib.suppress(ConnectionError):
                while (data := await conn.recv()) is not None:
                    yield data

        async with contextlib.aclosing(self._shell.session(incoming())) as updates:
            async for update in updates:
                await conn.send(_MESSAGE + update)

    async def _state(self, conn: Conn) -> None:
        async for update in self._shell.feed.subscribe():
            data = update.SerializeToString()
            fault = self._net.event_fault
            for message in [data] if fault is None else fault(conn, data):
                await conn.send(_MESSAGE + message)

    async def _card(self, conn: Conn) -> None:
        for chunk in self._shell.card():
            await conn.send(_MESSAGE + chunk.SerializeToString())


def serve_shell(net: Net, host: str, port: int, shell: EngineShell) -> Callable[[], None]:
    """Serves a shell at an address; returns what stops it, breaking its calls off."""
    server = _Server(net, shell)
    net.listen(host, port, server.accept)

    def stop() -> None:
        net.unlisten(host)
        server.stop()

    return stop
