"""What this machine gives the process: cores and memory, as affinity and cgroup allow."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2**63 for "no limit"."""


def _number(path: Path) -> int | None:
    """Reads a file that holds one number; None when it is absent or says "max"."""
    try:
        text = path.read_text(encoding="ascii").split()[0]
    except (OSError, IndexError):
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def free_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Returns the memory that may still be taken: the host's, or less under a cgroup limit."""
    free = psutil.virtual_memory().available
    pairs = (
        (cgroup / "memory.max", cgroup / "memory.current"),
        (cgroup / "memory/memory.limit_in_bytes", cgroup / "memory/memory.usage_in_bytes"),
    )
    for limit_file, usage_file in pairs:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and limit < _UNLIMITED:
            free = min(free, limit - usage)
    return max(free, 0)


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Returns the cores that affinity and the cgroup's quota allow, at least one."""
    cores = len(os.sched_getaffinity(0))
    quota = _number(cgroup / "cpu/cpu.cfs_quota_us")
    period = _number(cgroup / "cpu/cpu.cfs_period_us")
    try:
        words = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        quota, period = (None if words[0] == "max" else int(words[0])), int(words[1])
    except (OSError, IndexError, ValueError):
        pass
    if quota is not None and quota > 0 and period:
        cores = min(cores, math.ceil(quota / period))
    return max(cores, 1)
