"""A TCP proxy that breaks what passes it: at an exact byte, for a while, or towards another target.

    async with Proxy(port) as proxy:          # clients connect to proxy.address
        proxy.plan = lambda n: Plan(to_client=CutAfter(1000))   # connection n is cut there
        proxy.hold(Way.TO_CLIENT)             # from now on nothing passes in this direction
        proxy.target = other                  # new connections lead elsewhere

What passes in one direction of one connection goes through one filter. Filters that know RESP and
HTTP/2 are in `resp` and `http2`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Protocol

from tests.ports import lasting_port

_LINGER_NOT = struct.pack("ii", 1, 0)
"""SO_LINGER that makes close() a reset."""


class Way(Enum):
    """One of the two directions."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Pipe:
    """One direction of one connection, as its filter sees it."""

    def __init__(self, connection: Connection, writer: asyncio.StreamWriter) -> None:
        self.connection = connection
        self.passed = 0
        self._writer = writer

    async def write(self, data: bytes) -> None:
        """Passes bytes on, waiting while the reader is slow."""
        self.passed += len(data)
        self._writer.write(data)
        await self._writer.drain()

    def half_close(self) -> None:
        """Says that nothing more comes in this direction; the other one stays open."""
        if self._writer.can_write_eof():
            self._writer.write_eof()


class Filter(Protocol):
    """Decides what becomes of the bytes of one direction."""

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        """Takes what has arrived; passes on what it likes."""
        ...


class Pass:
    """Changes nothing."""

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        await pipe.write(data)


class CutAfter:
    """Passes exactly `count` bytes, then resets the connection."""

    def __init__(self, count: int) -> None:
        self._left = count

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        head, self._left = data[: self._left], max(0, self._left - len(data))
        if head:
            await pipe.write(head)
        if not self._left:
            await self._end(pipe)

    async def _end(self, pipe: Pipe) -> None:
        await asyncio.sleep(0.02)  # a reset overtakes bytes that the peer has not read
        pipe.connection.cut()


class HalfCloseAfter(CutAfter):
    """Passes exactly `count` bytes, then the end of this direction; the other stays open."""

    async def _end(self, pipe: Pipe) -> None:
        pipe.half_close()
        await asyncio.Event().wait()


class StallAfter(CutAfter):
    """Passes exactly `count` bytes, then nothing, and the connection stays open."""

    async def _end(self, pipe: Pipe) -> None:
        await asyncio.Event().wait()


class Drip:
    """Passes `size` bytes each `pause_s` seconds."""

    def __init__(self, size: int, pause_s: float) -> None:
        self._size, self._pause_s = size, pause_s

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        for i in range(0, len(data), self._size):
            await asyncio.sleep(self._pause_s)
            await pipe.write(data[i : i + self._size])


@dataclass(slots=True)
class Plan:
    """The filters of one connection."""

    to_server: Filter = field(default_factory=Pass)
    to_client: Filter = field(default_factory=Pass)


class Connection:
    """A client's connection and the one to the target that was opened for it."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.pipes = {Way.TO_SERVER: Pipe(self, server), Way.TO_CLIENT: Pipe(self, client)}
        self._writers = (client, server)

    def cut(self) -> None:
        """Resets both sides at once."""
        for writer in self._writers:
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            writer.transport.abort()

    def close(self) -> None:
        """Closes both sides cleanly, once what waits has been sent."""
        for writer in self._writers:
            writer.close()


class Proxy:
    """Listens on a loopback port and leads to another one.

    Args:
        target: the port that connections lead to; may be changed at any time.
        plan: makes the filters of the n-th connection.
    """

    def __init__(self, target: int, plan: Callable[[int], Plan] = lambda _: Plan()) -> None:
        self.target = target
        self.plan = plan
        self.connections: list[Connection] = []
        """Those that are open."""
        self.accepted = 0
        self.port = lasting_port()
        self._gates = {way: asyncio.Event() for way in Way}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for gate in self._gates.values():
            gate.set()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Proxy:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """Accepts connections, always at the same port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def refuse(self) -> None:
        """Stops listening: connecting fails at once. Open connections live on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def hold(self, *ways: Way) -> None:
        """Passes nothing from now on, in all connections, also new ones: a black hole."""
        for way in ways or Way:
            self._gates[way].clear()

    def release(self, *ways: Way) -> None:
        """Ends `hold`; what was held is passed on."""
        for way in ways or Way:
            self._gates[way].set()

    def cut(self) -> None:
        """Resets all open connections."""
        for connection in list(self.connections):
            connection.cut()

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            to_client.transport.abort()
            return
        plan = self.plan(number)
        connection = Connection(to_client, to_server)
        self.connections.append(connection)
        pumps = [
            asyncio.create_task(self._pump(Way.TO_SERVER, from_client, plan.to_server, connection)),
            asyncio.create_task(self._pump(Way.TO_CLIENT, from_server, plan.to_client, connection)),
        ]
        self._tasks.update(pumps)
        # Never cancelled itself: asyncio's streams log a handler that was.
        await asyncio.gather(*pumps, return_exceptions=True)
        self._tasks.difference_update(pumps)
        self.connections.remove(connection)
        connection.close()

    async def _pump(
        self, way: Way, reader: asyncio.StreamReader, filter: Filter, connection: Connection
    ) -> None:
        """Moves one direction until its end, which is passed on as a half-close."""
        pipe = connection.pipes[way]
        try:
            while data := await reader.read(65536):
                await self._gates[way].wait()
                await filter.feed(data, pipe)
            await self._gates[way].wait()
            pipe.half_close()
        except OSError:
            connection.cut()
