"""How often something arrives: counts of the last minute, second by second. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60


class Arrivals:
    """The arrivals of one kind; times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()
        """[second, arrivals], oldest first; at most one for each second of the window."""
        self._last: float | None = None

    def note(self, now: float) -> None:
        """Counts one."""
        self._last = now
        second = int(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += 1
            return
        self._seconds.append([second, 1])
        self._trim(now)

    def per_s(self, now: float) -> float:
        """Returns the mean rate of the window."""
        self._trim(now)
        return sum(count for _, count in self._seconds) / WINDOW_S

    def age_s(self, now: float) -> float | None:
        """Returns the time since the last one; None when there was none."""
        return None if self._last is None else now - self._last

    def _trim(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] <= int(now) - WINDOW_S:
            self._seconds.popleft()
