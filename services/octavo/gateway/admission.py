"""Who comes in, and who has to go when memory ends.

Admission    turns requests away early, with the time to come back
├ Upload     one body while it is read: counted, and timed
└ Holder     what holds buffers and can be ended: uploads, running answers

What is too much is decided in `overload`; here it is counted and done. Runs on the gateway's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

import structlog

from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.overload import Level, Memory, Places, Pressure, Surplus
from octavo.v1.errors import BODY_TIMEOUT, OVERLOADED, SLOW_CLIENT, OctavoError

log = structlog.get_logger(__name__)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]

TICK_S: Final = 0.05
"""Between two looks at clock and memory: a lag of twice this cannot be missed."""

LOW_SHARE: Final = 0.9
"""Part of the places that requests of the lowest class may fill, so that others find some."""

BODY_GRACE_S: Final = 30.0
BODY_BYTES_PER_S: Final = 16 * 1024
"""A body may take the grace and a second for each so many bytes that have come."""

TRIM_S: Final = 0.1
"""Between two trims while memory is short."""

MIN_SHED_BYTES: Final = 64 * 1024
"""A stream whose client reads never has more waiting than this for longer than a moment."""


class Holder(Protocol):
    """Something that holds memory for a request."""

    @property
    def held_bytes(self) -> int:
        """How much."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether it holds them only because its client does not read."""
        ...

    def end(self, error: OctavoError) -> None:
        """Gives them up; the client gets the error."""
        ...


class Admission:
    """The gateway's door.

    Args:
        max_requests: generations open at once.
        max_body_bytes_total: bytes of all bodies that are being read.
        metrics: gets lag, memory and what was ended.
        give_up: frees so many bytes, if it can, that no running request needs; returns how many.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        max_body_bytes_total: int,
        metrics: GatewayMetrics,
        give_up: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self._max_requests = max_requests
        self._max_body_bytes_total = max_body_bytes_total
        self._metrics = metrics
        self._give_up = give_up
        self._pressure = Pressure()
        self._places = Places()
        self._surplus = Surplus()
        self._uploads: dict[Upload, None] = {}
        self._holders: dict[Holder, None] = {}
        self._num_open = 0
        self.body_bytes = 0
        """Of all bodies that are being read."""

    @property
    def level(self) -> Level:
        """The present level."""
        return self._pressure.level

    @property
    def num_open(self) -> int:
        """Requests that are inside."""
        return self._num_open

    def check(self, *, low: bool = False) -> None:
        """Raises OVERLOADED when a request cannot come in now.

        Args:
            low: it is of the lowest class.
        """
        level = self._pressure.level
        most = self._max_requests * LOW_SHARE if low else self._max_requests
        if self._num_open >= most:
            raise self._overloaded(f"{self._num_open} requests are open")
        if level >= Level.LOW_REFUSED and low:
            raise self._overloaded("memory is short, and the request's priority is low")
        # When nothing is left that could be waited for, refusing would heal nothing.
        if level >= Level.NEW_REFUSED and (self._num_open or self._uploads):
            raise self._overloaded("memory is short")

    @contextmanager
    def upload(self, receive: _Receive) -> Iterator[Upload]:
        """A context in which a body is read; raises OVERLOADED before its first byte."""
        self.check()
        upload = Upload(self, receive)
        self._uploads[upload] = None
        try:
            yield upload
        finally:
            del self._uploads[upload]
            self.body_bytes -= upload.held_bytes

    @contextmanager
    def request(self, *, low: bool = False) -> Iterator[Callable[[Holder], None]]:
        """A context in which a request is inside; gives what takes note of its buffers.

        Raises OVERLOADED when it cannot come in.
        """
        self.check(low=low)
        loop = asyncio.get_running_loop()
        began = loop.time()
        held: list[Holder] = []

        def hold(holder: Holder) -> None:
            held.append(holder)
            self._holders[holder] = None

        self._num_open += 1
        try:
            yield hold
            self._places.ended(loop.time() - began)
        finally:
            self._num_open -= 1
            for holder in held:
                del self._holders[holder]

    def took(self, size: int) -> None:
        """Counts bytes of a body; when all bodies are too large together, the largest goes."""
        self.body_bytes += size
        while self.body_bytes > self._max_body_bytes_total:
            coming = [u for u in self._uploads if u.held_bytes and not u.complete]
            if not coming:
                return
            largest = max(coming, key=lambda u: u.held_bytes)
            self._end(largest, self._overloaded("too many bodies are being sent"), "upload")

    def observe(self, memory: Memory) -> None:
        """Takes a sample of the memory and does what its level demands."""
        before, level = self._pressure.level, self._pressure.observe(memory.share)
        if level != before:
            say = log.warning if level > before else log.info
            say("overload", now=level.name.lower(), memory_share=round(memory.share, 3))
        surplus_bytes = self._surplus.observe(memory, asyncio.get_running_loop().time())
        if level == Level.SHED:
            self._shed(surplus_bytes)

    async def run(self, read: Callable[[], Memory], trim: Callable[[], None]) -> None:
        """Looks at clock and memory until it is cancelled.

        Args:
            read: samples the memory.
            trim: gives back what the process holds without need; takes some milliseconds.
        """
        loop = asyncio.get_running_loop()
        trimmed = loop.time()
        while True:
            due = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            now = loop.time()
            self._metrics.loop_lag.observe(max(0.0, now - due))
            if self.level >= Level.LOW_REFUSED and now - trimmed >= TRIM_S:
                trim()
                trimmed = now
            self.observe(read())

    def _shed(self, wanted_bytes: int) -> None:
        """Ends the largest holders, slow clients first, until enough should come free.

        Before them goes what only those need who may come later.
        """
        if wanted_bytes > 0 and (given_up := self._give_up(wanted_bytes)):
            log.warning("answers_dropped", held_bytes=given_up)
            self._surplus.given_up(given_up, asyncio.get_running_loop().time())
            wanted_bytes -= given_up
        coming = [u for u in self._uploads if not u.complete]
        holders: list[Holder] = [*coming, *self._holders]
        large = [h for h in holders if h.held_bytes > MIN_SHED_BYTES]
        large.sort(key=lambda h: (not h.is_slow, -h.held_bytes))
        for holder in large:
            if wanted_bytes <= 0:
                return
            wanted_bytes -= holder.held_bytes
            self._surplus.given_up(holder.held_bytes, asyncio.get_running_loop().time())
            if holder.is_slow:
                held = holder.held_bytes
                error = OctavoError(SLOW_CLIENT, waiting=held, limit=MIN_SHED_BYTES)
                self._end(holder, error, "slow_client")
            else:
                self._end(holder, self._overloaded("memory has run out"), "large")

    def _end(self, holder: Holder, error: OctavoError, kind: str) -> None:
        self._metrics.shed.labels(kind).inc()
        log.warning("request_shed", kind=kind, held_bytes=holder.held_bytes)
        holder.end(error)

    def _overloaded(self, reason: str) -> OctavoError:
        now = asyncio.get_running_loop().time()
        seconds = self._places.next_s(now, num_open=self._num_open)
        return OctavoError(OVERLOADED, reason=reason, retry_after_ms=int(seconds * 1000))


class Upload:
    """One body while it is read."""

    is_slow: Final = False

    def __init__(self, admission: Admission, receive: _Receive) -> None:
        self.held_bytes = 0
        self.complete = False
        """All of it is here: it is about to be parsed, and can no longer be given up."""
        self._admission = admission
        self._receive = receive
        self._began = asyncio.get_running_loop().time()
        self._timeout: asyncio.Timeout | None = None
        self._error: OctavoError | None = None

    async def receive(self) -> _Message:
        """Returns the connection's next message.

        Raises:
            OctavoError: BODY_TIMEOUT, or OVERLOADED when this body had to go.
        """
        self._raise_error()
        deadline = self._began + BODY_GRACE_S + self.held_bytes / BODY_BYTES_PER_S
        try:
            async with asyncio.timeout_at(deadline) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            self._raise_error()
            raise OctavoError(BODY_TIMEOUT, received=self.held_bytes) from None
        finally:
            self._timeout = None
        size = len(message.get("body", b""))
        self.held_bytes += size
        self.complete = not message.get("more_body", False)
        self._admission.took(size)
        self._raise_error()
        return message

    def end(self, error: OctavoError) -> None:
        """Makes the reader raise the error now, and forgets the bytes: it will drop them."""
        self._error = error
        self._admission.body_bytes -= self.held_bytes
        self.held_bytes = 0
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
