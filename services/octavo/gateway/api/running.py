"""The generations of one HTTP request while they run, and the client that waits for them.

Each generation has a task that moves its deltas into one list; another watches the connection.
The list is bounded: a client that reads too slowly loses its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Final, Protocol

import structlog

from octavo.gateway.api.body import Receive, left
from octavo.gateway.api.plan import Plan
from octavo.gateway.routing import Route
from octavo.gateway.time_bounds import OVERDUE_S, TimeBounds
from octavo.v1 import engine_pb2
from octavo.v1.errors import INTERNAL, SLOW_CLIENT, OctavoError

log = structlog.get_logger(__name__)

MAX_PENDING_BYTES: Final = 8 * 1024 * 1024
"""Deltas of a stream that may wait for a slow client: of plain text, minutes of generation."""


class Stream(Protocol):
    """The deltas of one prompt: a generation of this request, or a reader of a shared one."""

    @property
    def route(self) -> Route | None:
        """Why it runs where it runs, if that is known."""
        ...

    def __aiter__(self) -> AsyncIterator[engine_pb2.Delta]:
        """Iterates; raises OctavoError when the answer cannot be finished."""
        ...

    def fail(self, error: OctavoError) -> None:
        """Tells it why its deltas are not read any more."""
        ...

    async def aclose(self) -> None:
        """Ends the reading. Idempotent."""
        ...


Open = Callable[[int], Awaitable[Stream]]
"""Opens the stream of a prompt, given its place."""


class Running:
    """An async context in which a plan's calls run; leaving it cancels what has not ended."""

    def __init__(self, plan: Plan, open: Open, receive: Receive, *, bounds: TimeBounds) -> None:
        self.generations: list[Stream | None] = [None] * len(plan.calls)
        self.error: OctavoError | None = None
        """The first thing that went wrong."""
        self.gone = False
        """The client does not read any more."""
        self._plan = plan
        self._open = open
        self._receive = receive
        self._bounds = bounds
        self._timer: asyncio.TimerHandle | None = None
        self._num_open = len(plan.calls)
        self._deltas: list[tuple[int, engine_pb2.Delta]] = []
        self._pending_bytes = 0
        self._turn = asyncio.Lock()
        self._waiter: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Running:
        self._tasks = [asyncio.create_task(self._move(i)) for i in range(len(self._plan.calls))]
        self._tasks.append(asyncio.create_task(self._watch()))
        if (late_at := self._bounds.late_at) is not None:
            # Usually the generation ends by itself; an answer shared by key has its own time.
            at = late_at + OVERDUE_S
            self._timer = asyncio.get_running_loop().call_at(at, self._too_late)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        unfinished = [task for task in self._tasks if not task.done()]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)

    @property
    def ended(self) -> bool:
        """Whether no more deltas will come than those not taken yet."""
        return self._num_open == 0

    @property
    def held_bytes(self) -> int:
        """Deltas that wait for the client: of an answer in one piece, all that have come."""
        return self._pending_bytes

    @property
    def is_slow(self) -> bool:
        """Whether what waits does so because the client does not read."""
        return self._plan.stream

    def end(self, error: OctavoError) -> None:
        """Ends everything with an error, and forgets what waits."""
        self.error = self.error or error
        self._deltas.clear()
        self._pending_bytes = 0
        for generation in self.generations:
            if generation is not None:
                generation.fail(error)
        self._wake()

    async def take(self, timeout_s: float) -> list[tuple[int, engine_pb2.Delta]]:
        """Returns all deltas that are there, each with its prompt's place.

        Waits for the first one, for the end, an error or the client's leaving, at most as long
        as given; returns an empty list then.
        """
        if not (self._deltas or self.ended or self.error or self.gone):
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        deltas, self._deltas = self._deltas, []
        if self._plan.stream:
            self._pending_bytes = 0
        return deltas

    def _too_late(self) -> None:
        self.error = self.error or self._bounds.exceeded()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _move(self, prompt: int) -> None:
        generation: Stream | None = None
        try:
            if prompt:  # one in each turn of the loop: to hash a thousand prompts takes a second
                async with self._turn:
                    await asyncio.sleep(0)
            generation = await self._open(prompt)
            self.generations[prompt] = generation
            async for delta in generation:
                self._put(prompt, delta)
        except OctavoError as error:
            self.error = self.error or error
            if generation is not None:
                generation.fail(error)
        except Exception:
            log.exception("request_crashed", id=self._plan.context.id)
            self.error = self.error or OctavoError(INTERNAL, id=self._plan.context.id)
        finally:
            if generation is not None:
                await generation.aclose()
            self._num_open -= 1
            self._wake()

    def _put(self, prompt: int, delta: engine_pb2.Delta) -> None:
        if self._deltas:  # it may wait for long, and would keep its neighbours' deltas with it
            delta = _apart(delta)
        self._deltas.append((prompt, delta))
        self._pending_bytes += delta.ByteSize()
        self._wake()
        # An answer in one piece waits for its last delta, so its client cannot be slow yet.
        if self._plan.stream and self._pending_bytes > MAX_PENDING_BYTES and len(self._deltas) > 1:
            error = OctavoError(SLOW_CLIENT, waiting=self._pending_bytes, limit=MAX_PENDING_BYTES)
            self.end(error)
            raise error

    async def _watch(self) -> None:
        await left(self._receive)
        self.gone = True
        self._wake()


def _apart(delta: engine_pb2.Delta) -> engine_pb2.Delta:
    """Returns a copy of its own: a part of a message keeps the memory of the whole."""
    copy = engine_pb2.Delta()
    copy.CopyFrom(delta)
    return copy
