"""A connection of the simulated net: ordered, reliable, made of messages, with a bounded buffer.

What crosses it travels in `launch` → `_arrive` → `_take`; the net says how long that takes and
whether it can happen now. Who waits here wakes up in its own process.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.net import Net

HIGH_WATER = 65536
"""Bytes that one side sends ahead of the other's reading."""


class Mark(enum.Enum):
    """What travels besides data."""

    SYN = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()
    EOF = enum.auto()
    RESET = enum.auto()
    ROOM = enum.auto()


class Conn:
    """One end of a connection. Made by Net.

    Read it with `recv`, one reader at a time, or by callbacks after `attach`.
    """

    peer: Conn

    def __init__(self, net: Net, local: str, remote: str, port: int) -> None:
        self.net = net
        self.local = local
        self.remote = remote
        self.port = port
        self.unread = 0
        """Bytes sent from here that the other side has not read."""
        self._on_lost: Callable[[], object] | None = None
        self._flight: deque[tuple[float, bytes | Mark]] = deque()
        self._moving = False
        self._inbox: deque[bytes] = deque()
        self._eof = self._eof_told = False
        self._closed = False
        self._error: OSError | None = None
        self._established = False
        self.heard = False
        """Whether any message came from the other side."""
        self._news: list[asyncio.Future[None]] = []
        self._receiver: Receiver | None = None
        self._context: Context | None = None
        self._silent_since: float | None = None

    def launch(self, item: bytes | Mark) -> None:
        """Puts something on the wire."""
        net = self.net
        arrival = net.loop.time() + net.delay(self.local, self.remote)
        self._flight.append((arrival, item))  # waits for what is ahead of it
        if not self._moving:
            self._moving = True
            net.loop.call_at(arrival, self._arrive, context=net.context)

    def go_on(self, delay: float) -> None:
        """Tries again to deliver what waits."""
        loop = self.net.loop
        if self._flight:
            arrival = max(self._flight[0][0], loop.time() + delay)
            loop.call_at(arrival, self._arrive, context=self.net.context)

    def _arrive(self) -> None:
        loop, flight = self.net.loop, self._flight
        while flight and flight[0][0] <= loop.time():
            if self.net.holds(self, flight[0][1]):
                self.net.stall(self)
                return
            self.peer._take(flight.popleft()[1])
        self._moving = bool(flight)
        if flight:
            loop.call_at(flight[0][0], self._arrive, context=self.net.context)

    def _take(self, item: bytes | Mark) -> None:
        if self._error is not None:
            return
        if isinstance(item, bytes):
            if self._closed:
                self._error = ConnectionResetError("data after close")
                self.launch(Mark.RESET)
                return
            self.heard = True
            self._inbox.append(item)
        elif item is Mark.SYN:
            accepted = self.net.accept(self)
            self._established = accepted
            if accepted:
                self.net.conns[self] = None
            self.launch(Mark.OPEN if accepted else Mark.REFUSED)
            if not accepted:
                self._fail(ConnectionRefusedError("nobody listens"))
        elif item is Mark.OPEN:
            self._established = True
        elif item is Mark.EOF:
            self._eof = True
        elif item is not Mark.ROOM:
            lost = ConnectionRefusedError if item is Mark.REFUSED else ConnectionResetError
            self._fail(lost(f"{self.remote}:{self.port} {item.name.lower()}"))
        self._tell()

    def _fail(self, error: OSError) -> None:
        self._error = error
        self.net.conns.pop(self, None)
        if self._on_lost is not None and not self._closed:
            self.net.loop.call_soon(self._on_lost, context=self._context)
        self._on_lost = None

    def _tell(self) -> None:
        for future in self._news:
            if not future.done():
                future.set_result(None)
        self._news.clear()
        if self._receiver is not None:
            self.net.loop.call_soon(self._read, context=self._context)

    async def _change(self) -> None:
        future = self.net.loop.create_future()
        self._news.append(future)
        await future

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(str(self._error))
        if self._closed:
            raise ConnectionResetError("closed here")

    def watch(self, on_lost: Callable[[], object]) -> None:
        """Has a function called once, in this process, when the other side breaks it off."""
        self._context = copy_context()
        if self._error is not None:
            self.net.loop.call_soon(on_lost)
        else:
            self._on_lost = on_lost

    @property
    def is_established(self) -> bool:
        """Whether the other side has answered."""
        return self._established

    @property
    def is_over(self) -> bool:
        """Whether nothing can be sent from here any more."""
        return self._closed or self._error is not None

    async def established(self) -> None:
        """Waits for the other side's answer."""
        while not self._established:
            self._check()
            await self._change()

    async def recv(self) -> bytes | None:
        """Returns the next message, None at a clean end; raises ConnectionError."""
        while not self._inbox:
            if self._eof and not self._closed:
                return None
            self._check()
            await self._change()
        return self._pop()

    def _pop(self) -> bytes:
        data = self._inbox.popleft()
        peer = self.peer
        was_full = peer.unread >= HIGH_WATER
        peer.unread -= len(data)
        if was_full and peer.unread < HIGH_WATER:
            self.launch(Mark.ROOM)  # only a full sender waits for the news
        return data

    async def send(self, data: bytes) -> None:
        """Sends a message, waiting while too much is unread; raises ConnectionError."""
        while self.unread >= HIGH_WATER and self._error is None and not self._closed:
            await self._change()
        self.push(data)

    def push(self, data: bytes) -> None:
        """Sends without waiting; raises ConnectionError."""
        self._check()
        self.unread += len(data)
        self.launch(data)

    def close(self) -> None:
        """Ends cleanly: what was sent arrives first. Nothing more is read here."""
        self._shut(Mark.EOF)

    def abort(self, reason: str = "closed here") -> None:
        """Breaks off; the other side is told after what was sent."""
        self._shut(Mark.RESET, ConnectionResetError(reason))

    def lose(self, reason: str) -> None:
        """Breaks off by no wish of this side, which is told like the other."""
        if not self.is_over:
            self.launch(Mark.RESET)
            self._fail(ConnectionResetError(reason))
            self._tell()

    def _shut(self, mark: Mark, error: OSError | None = None) -> None:
        if self.is_over:
            return
        self._closed = True
        self._error = error
        self._inbox.clear()
        self.net.conns.pop(self, None)
        self.launch(mark)
        self._tell()

    def keep_alive(self, every_s: float, timeout_s: float, *, since: float = 0.0) -> None:
        """Breaks the connection off when the other side answers no ping for so long.

        Args:
            since: pings are sent in multiples of `every_s` after that moment.
        """
        wait = every_s - (self.net.loop.time() - since) % every_s
        self.net.loop.call_later(wait, self._ping, every_s, timeout_s)

    def _ping(self, every_s: float, timeout_s: float) -> None:
        if self.is_over:
            return
        now = self.net.loop.time()
        if self.net.answers(self.local, self.remote):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= timeout_s:
            self.lose("no answer to a ping")
            return
        self.net.loop.call_later(every_s, self._ping, every_s, timeout_s)

    def attach(self, receiver: Receiver) -> None:
        """Gives what arrives to a receiver instead of `recv`, in this process."""
        self._receiver = receiver
        self._context = copy_context()
        self.net.loop.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        """Tells the receiver all there is to tell."""
        receiver = self._receiver
        while self._inbox and receiver is not None and receiver.wants_data():
            receiver.on_data(self._pop())
            receiver = self._receiver
        if receiver is None:
            return
        if self.unread < HIGH_WATER:
            receiver.on_room()
        if self._inbox:
            return
        if self._eof and not self._eof_told and not self._closed:
            self._eof_told = True
            receiver.on_eof()
        if self.is_over:
            self._receiver = None
            receiver.on_end(self._error)


class Receiver:
    """Whom a connection tells what arrives. The base takes no notice."""

    def wants_data(self) -> bool:
        """Whether data may be given now."""
        return True

    def on_data(self, data: bytes) -> None:
        """Data came."""

    def on_room(self) -> None:
        """There is room to write."""

    def on_eof(self) -> None:
        """The other side has closed."""

    def on_end(self, error: OSError | None) -> None:
        """It is over: closed here, or lost."""
