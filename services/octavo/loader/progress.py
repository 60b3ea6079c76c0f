"""How far a load is, told every few seconds; what was told never goes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

TELL_S: Final = 4.0
"""From one line to the next; with the second between two looks less than five."""
_WINDOW_S: Final = 20.0


class Progress:
    """Counts bytes and writes one log line every TELL_S.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._stage = ""
        self._told = clock()
        self._total = 0
        self._done = 0
        self._furthest = 0
        self._received = 0
        self._retries = 0
        self._reason = ""
        self._samples = deque([(clock(), 0)])

    @property
    def received(self) -> int:
        """Bytes that came from the source, those of discarded files among them."""
        return self._received

    def stage(self, name: str, total: int = 0) -> None:
        """Says what is being done, of how many bytes, and tells it when that is new."""
        if name != self._stage:
            self._stage = name
            self._total = total
            self._done = self._furthest = 0
            self._reason = ""
            self._samples = deque([(self._clock(), self._received)])
            self._tell()

    def at(self, num_bytes: int) -> None:
        """So many bytes of the stage are done."""
        self._done = num_bytes
        self.look()

    def found(self, num_bytes: int) -> None:
        """Bytes were there already."""
        self.at(self._done + num_bytes)

    def got(self, num_bytes: int) -> None:
        """Bytes came from the source."""
        self._received += num_bytes
        self._reason = ""
        self.found(num_bytes)

    def lost(self, num_bytes: int) -> None:
        """Bytes were thrown away; the line stands still until they are back."""
        self._done -= num_bytes

    def retry(self, reason: str) -> None:
        """Something is tried again."""
        self._retries += 1
        self._reason = reason

    def look(self) -> None:
        """Tells when it is time."""
        if self._clock() - self._told >= TELL_S:
            self._tell()

    def _tell(self) -> None:
        now = self._clock()
        self._told = now
        self._furthest = max(self._furthest, self._done)
        self._samples.append((now, self._received))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        began, before = self._samples[0]
        rate = (self._received - before) / max(now - began, 1e-3)
        left_s = (self._total - self._furthest) / rate if rate and self._total else None
        log.info(
            "progress",
            stage=self._stage,
            text=self._text(rate, left_s),
            done_bytes=self._furthest,
            total_bytes=self._total,
            rate_bytes_s=round(rate),
            eta_s=None if left_s is None else round(left_s),
            retries=self._retries,
        )

    def _text(self, rate: float, left_s: float | None) -> str:
        parts = []
        if self._total:
            parts.append(f"{self._furthest / 1e6:,.0f} of {self._total / 1e6:,.0f} MB")
        if left_s is not None:
            parts += [f"{rate / 1e6:,.1f} MB/s", f"{_duration(left_s)} left"]
        if self._reason:
            parts.append(f"trying again: {self._reason}")
        return ", ".join([self._stage, *parts])


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
