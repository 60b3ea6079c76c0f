"""How long a request may take, over all its attempts. Pure: told the time by its caller."""

from __future__ import annotations

from octavo.v1 import engine_pb2
from octavo.v1.errors import DEADLINE_EXCEEDED, QUEUE_TIMEOUT, OctavoError
from octavo.v1.limits import MAX_MS

OVERDUE_S = 0.25
"""How long after its deadline a request may end by its engine's word; then the gateway ends it."""


class TimeBounds:
    """The deadline of a request and the longest time that it may queue.

    Args:
        request: with `remaining_ms` and `max_queue_ms` as they were at its arrival.
        now: monotonic seconds of its arrival.
    """

    def __init__(self, request: engine_pb2.GenerateRequest, now: float) -> None:
        self._arrived = now
        self._remaining_ms = request.remaining_ms
        self._max_queue_ms = request.max_queue_ms

    @property
    def overdue_s(self) -> float | None:
        """Seconds after arrival when nobody need be waited for any more; None: no deadline."""
        return self._remaining_ms / 1000 + OVERDUE_S if self._remaining_ms else None

    @property
    def late_at(self) -> float | None:
        """The time from which on nobody need be waited for; None: no deadline."""
        return None if self.overdue_s is None else self._arrived + self.overdue_s

    @property
    def queue_ends_at(self) -> float | None:
        """The time until which it may wait for its turn; None: for ever."""
        limits = [ms for ms in (self._remaining_ms, self._max_queue_ms) if ms]
        return self._arrived + min(limits) / 1000 if limits else None

    def exceeded(self) -> OctavoError:
        """Returns what a caller is told whose deadline is over."""
        return OctavoError(DEADLINE_EXCEEDED, limit_ms=self._remaining_ms)

    def check(self, now: float, *, started: bool) -> None:
        """Raises when time is over; a request that has begun does not queue any more."""
        elapsed_ms = (now - self._arrived) * 1000
        if self._remaining_ms and elapsed_ms >= self._remaining_ms:
            raise self.exceeded()
        if self._max_queue_ms and not started and elapsed_ms >= self._max_queue_ms:
            raise OctavoError(QUEUE_TIMEOUT, limit_ms=self._max_queue_ms)

    def apply(self, sent: engine_pb2.GenerateRequest, now: float) -> None:
        """Takes the time that earlier attempts used from the bounds of the next one."""
        elapsed_ms = int((now - self._arrived) * 1000)
        sent.age_ms = min(elapsed_ms, MAX_MS)
        if sent.remaining_ms:
            sent.remaining_ms = max(sent.remaining_ms - elapsed_ms, 1)
        if sent.max_queue_ms:
            sent.max_queue_ms = max(sent.max_queue_ms - elapsed_ms, 1)
