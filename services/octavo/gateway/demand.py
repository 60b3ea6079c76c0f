"""Who wants which service: how often, how many wait for an engine, and what they were served.

    hold       a request that nothing can be done for before an engine is there: it is not tokenised
    waiting    one that was on its way when the last engine left

What is held is bounded in number and time, and let go in the order of arrival. Whoever scales
services reads the figures, which remember a request when its client has left. Knows no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import structlog

from octavo.gateway.arrivals import Arrivals
from octavo.gateway.metrics import GatewayMetrics
from octavo.v1 import engine_pb2
from octavo.v1.errors import OVERLOADED, OctavoError

log = structlog.get_logger(__name__)

_WEIGHT: Final = 0.1
"""Of a new observation in a moving average: the last twenty or so requests count."""

RETRY_MS: Final = 10_000
"""When to come back to a service whose engines are being started: a small model loads meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is known of the demand for one service."""

    held: int
    arrivals_per_s: float
    wanted_age_s: float | None
    """Since the last request; None: there was none."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens, those that the engines did not compute."""
    place_s: float | None
    """Mean seconds for which a request had its place, times its choices; None: none has ended."""


@dataclass(slots=True, kw_only=True)
class _Wanted:
    arrivals: Arrivals = field(default_factory=Arrivals)
    held: dict[asyncio.Event, None] = field(default_factory=dict)
    """The turns of those that wait, in the order of their arrival."""
    waiting: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    place_s: float | None = None

    def note_place(self, seconds: float) -> None:
        """Has the seconds of one request count in the mean."""
        mean = seconds if self.place_s is None else self.place_s
        self.place_s = mean + _WEIGHT * (seconds - mean)


class Demand:
    """The demand of one gateway.

    Args:
        hold_s: how long a request waits for an engine of a service that has none.
        max_held: how many may wait so.
        metrics: counts what became of them.
    """

    def __init__(self, *, hold_s: float, max_held: int, metrics: GatewayMetrics) -> None:
        self.hold_s = hold_s
        self._max_held = max_held
        self._metrics = metrics
        self._wanted: dict[str, _Wanted] = {}
        self._num_held = 0

    @property
    def num_held(self) -> int:
        """Requests that are held."""
        return self._num_held

    def arrived(self, service: str) -> None:
        """Notes that a request wants a service."""
        self._of(service).arrivals.note(asyncio.get_running_loop().time())

    async def hold(
        self, service: str, still: Callable[[], bool], *, until: float | None = None
    ) -> None:
        """Returns when `still` is no longer true, or when a request must not wait any longer.

        Args:
            service: what it waits for.
            still: whether there is something to wait for.
            until: the loop's time at which its own patience ends.

        Raises:
            OctavoError: OVERLOADED when too many wait.
        """
        if self._num_held >= self._max_held:
            self._metrics.held.labels("refused").inc()
            reason = f"{self._num_held} requests wait for engines that are being started"
            raise OctavoError(OVERLOADED, reason=reason, retry_after_ms=RETRY_MS)
        wanted, turn = self._of(service), asyncio.Event()
        ends = asyncio.get_running_loop().time() + self.hold_s
        outcome = "left"
        self._num_held += 1
        wanted.held[turn] = None
        log.info("request_held", service=service, held=len(wanted.held))
        try:
            async with asyncio.timeout_at(ends if until is None else min(ends, until)):
                while still():
                    turn.clear()
                    await turn.wait()
            outcome = "released"
        except TimeoutError:
            outcome = "expired"
        finally:
            del wanted.held[turn]
            self._num_held -= 1
            self._metrics.held.labels(outcome).inc()

    def release(self, service: str) -> None:
        """Lets those that are held look again, first come first served."""
        if wanted := self._wanted.get(service):
            for turn in wanted.held:
                turn.set()

    def waiting(self, service: str) -> AbstractContextManager[None]:
        """A context in which a request that was on its way waits for another engine."""
        return self._waiting(service) if service else nullcontext()

    def served(self, service: str, usage: engine_pb2.Usage, *, choices: int = 1) -> None:
        """Notes what a finished request took.

        Args:
            service: that it was for.
            usage: as its last engine counted it.
            choices: that ran there at once.
        """
        if wanted := self._wanted.get(service):
            wanted.prompt_tokens += usage.prompt_tokens
            wanted.cached_tokens += usage.cached_tokens
            if took_ms := usage.prefill_ms + usage.decode_ms:
                wanted.note_place(choices * took_ms / 1e3)

    def figures(self, service: str) -> Figures:
        """Returns what is known of a service."""
        wanted, now = self._of(service), asyncio.get_running_loop().time()
        return Figures(
            held=len(wanted.held) + wanted.waiting,
            arrivals_per_s=wanted.arrivals.per_s(now),
            wanted_age_s=wanted.arrivals.age_s(now),
            prompt_tokens=wanted.prompt_tokens,
            cached_tokens=wanted.cached_tokens,
            place_s=wanted.place_s,
        )

    def keep(self, services: Collection[str]) -> None:
        """Forgets all other services."""
        for service in [s for s in self._wanted if s not in services]:
            self.release(service)
            del self._wanted[service]

    def _of(self, service: str) -> _Wanted:
        return self._wanted.setdefault(service, _Wanted())

    @contextmanager
    def _waiting(self, service: str) -> Iterator[None]:
        wanted = self._of(service)
        wanted.waiting += 1
        try:
            yield
        finally:
            wanted.waiting -= 1
