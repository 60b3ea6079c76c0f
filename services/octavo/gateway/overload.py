"""When the gateway has too much to do: pure decisions, and the reader of the process's memory.

Pressure   share of the memory → level, rising at once and falling with hysteresis
Places     when one that was turned away should come back
Surplus    how much has to be given up
Memory     what the process holds and may hold, as the kernel says

Knows no requests: `admission` acts on what is decided here.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final


class Level(IntEnum):
    """What has to be done; each level includes those below it."""

    NORMAL = 0
    LOW_REFUSED = 1
    """New requests of the lowest class, priority above zero, are refused."""
    NEW_REFUSED = 2
    """All new requests are refused."""
    SHED = 3
    """Requests that hold the largest buffers are ended; streams that are read go on."""


RISES_AT: Final = (0.85, 0.92, 0.95)
"""Share of the memory at which each level begins."""

HYSTERESIS: Final = 0.02
"""How far the share must fall below that for the level to end."""


class Pressure:
    """The present level."""

    def __init__(self) -> None:
        self.level = Level.NORMAL

    def observe(self, share: float) -> Level:
        """Takes a sample of the memory's share and returns the level."""
        level = int(self.level)
        while level < Level.SHED and share >= RISES_AT[level]:
            level += 1
        while level > Level.NORMAL and share < RISES_AT[level - 1] - HYSTERESIS:
            level -= 1
        self.level = Level(level)
        return self.level


MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0
"""Clients sit silently for what they are told; some give up at once beyond a minute."""

_FIRST_GUESS_S: Final = 2.0
_SMOOTHING: Final = 0.1


class Places:
    """Tells each request that is turned away when there will be a place for it.

    While `num_open` requests run that take `mean_s` each, a place becomes free every
    mean_s / num_open seconds. Each one turned away gets the first place that was promised to
    nobody, so they come back as fast as they can be served and not all at once.
    """

    def __init__(self) -> None:
        self._mean_s = _FIRST_GUESS_S
        self._promised = 0.0

    def ended(self, seconds: float) -> None:
        """Notes how long a request took that was served."""
        self._mean_s += _SMOOTHING * (seconds - self._mean_s)

    def next_s(self, now: float, *, num_open: int) -> float:
        """Returns in how many seconds to come back."""
        free = max(self._promised, now) + self._mean_s / max(num_open, 1)
        self._promised = min(free, now + MAX_RETRY_S)
        return max(self._promised - now, MIN_RETRY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A sample."""

    used_bytes: int
    limit_bytes: int
    """Zero: no limit is known."""

    @property
    def share(self) -> float:
        """Used of limit; zero without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else 0.0


FREEING_S: Final = 0.2
"""Time in which memory that was given up comes free, so that nobody else has to go for it."""


class Surplus:
    """How much has to be given up: what is too much and is not about to come free already."""

    def __init__(self) -> None:
        self._used_bytes = 0
        self._freeing_bytes = 0
        self._until = 0.0

    def observe(self, memory: Memory, now: float) -> int:
        """Takes a sample and returns the bytes to give up: back to where all may still run."""
        fallen = max(0, self._used_bytes - memory.used_bytes)
        self._used_bytes = memory.used_bytes
        self._freeing_bytes = max(0, self._freeing_bytes - fallen) if now < self._until else 0
        line = int(RISES_AT[1] * memory.limit_bytes)
        return max(0, memory.used_bytes - line - self._freeing_bytes)

    def given_up(self, size: int, now: float) -> None:
        """Notes bytes that will come free."""
        self._freeing_bytes += size
        self._until = now + FREEING_S


class MemoryReader:
    """Reads the memory of this process, not of its cgroup, which may hold an engine as well.

    Counts what only swapping could take away: file pages are the kernel's to reclaim.

    Args:
        limit_bytes: a limit of our own; zero takes the cgroup's alone.
        proc: the process's folder in procfs.
        cgroup: where the control groups are mounted.
    """

    def __init__(
        self,
        limit_bytes: int = 0,
        *,
        proc: Path = Path("/proc/self"),
        cgroup: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        limits = [limit_bytes] if limit_bytes else []
        self._limit_bytes = min(limits + _cgroup_limits(proc, cgroup), default=0)
        self._statm = proc / "statm"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def __call__(self) -> Memory:
        """Returns a sample; one of nothing where there is no procfs."""
        try:
            _, resident, shared, *_ = map(int, self._statm.read_text(encoding="ascii").split())
        except (OSError, ValueError):
            return Memory(used_bytes=0, limit_bytes=0)
        used_bytes = (resident - shared) * self._page_bytes
        return Memory(used_bytes=used_bytes, limit_bytes=self._limit_bytes)


def trim() -> None:
    """Has the C library give back free pages that lie between used ones, if it is glibc.

    It keeps them for itself otherwise, so that memory which was freed still counts as used.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


_UNLIMITED: Final = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""


def _cgroup_limits(proc: Path, root: Path) -> list[int]:
    """Returns the limits of the process's own group and of those above it, of either version."""
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    limits: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = Path(path.lstrip("/"))
        # In a container the path may be the host's while the mount shows the own group as root.
        for folder in (own, *own.parents):
            limits += _limit(mount / folder / name)
    return limits


def _limit(path: Path) -> list[int]:
    """Returns the limit in a file; none when it is absent or says "max"."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() and int(text) < _UNLIMITED else []
