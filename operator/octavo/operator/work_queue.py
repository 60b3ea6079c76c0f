"""Which service is worked on next: each at most once at a time, and once for many reasons.

A key that is added while it waits keeps the earlier of its two moments; one that is added while it
is worked on comes again afterwards. Knows neither what the keys are nor what the work is.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """Keys by the moment from which on they may be taken.

    Args:
        now: the clock, that of the event loop.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._order = 0
        self._busy: set[K] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys that wait."""
        return len(self._due)

    @property
    def num_busy(self) -> int:
        """Number of keys that are worked on."""
        return len(self._busy)

    def overdue_s(self) -> float:
        """Returns for how long the first key has waited for somebody to take it."""
        waiting = [due for key, due in self._due.items() if key not in self._busy]
        return max(0.0, self._now() - min(waiting)) if waiting else 0.0

    def add(self, key: K, after_s: float = 0.0) -> None:
        """Has a key taken after a while, or earlier if it is due earlier already."""
        due = self._now() + after_s
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            self._push(key, due)

    async def take(self) -> K:
        """Waits for the first key that is due and worked on by nobody; `done` has to follow."""
        while True:
            self._settle()
            if self._heap and self._heap[0][0] <= self._now():
                key = heapq.heappop(self._heap)[2]
                del self._due[key]
                self._busy.add(key)
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout_at(self._heap[0][0] if self._heap else None):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K) -> None:
        """Ends the work on a key."""
        self._busy.discard(key)
        if key in self._due:
            self._push(key, self._due[key])

    def forget(self, key: K) -> None:
        """Takes back what was added for a key."""
        self._due.pop(key, None)

    def _push(self, key: K, due: float) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, key))
        self._changed.set()

    def _settle(self) -> None:
        """Drops from the top what was superseded, or has to wait for `done`."""
        while self._heap:
            due, _, key = self._heap[0]
            if key not in self._busy and self._due.get(key) == due:
                return
            heapq.heappop(self._heap)
