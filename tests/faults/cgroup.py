"""A memory limit or a slow processor for one process, by a control group of version 1 or 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")


@cache
def _controller(name: str) -> Path | None:
    """Returns the folder in which groups with a controller can be made; None: nowhere."""
    for folder in (_ROOT / name, _ROOT):
        if not os.access(folder, os.W_OK):
            continue
        if folder == _ROOT:
            file = folder / "cgroup.subtree_control"
            if not file.is_file() or name not in file.read_text().split():
                continue
        return folder
    return None


needs_memory = pytest.mark.skipif(
    _controller("memory") is None, reason="no control group for memory can be made here"
)
needs_cpu = pytest.mark.skipif(
    _controller("cpu") is None, reason="no control group for the processor can be made here"
)


@contextlib.contextmanager
def _group(controller: str, name: str) -> Iterator[Path]:
    folder = _controller(controller)
    assert folder is not None
    group = folder / f"octavo-faults-{os.getpid()}-{name}"
    group.mkdir()
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (folder / "cgroup.procs").write_text(pid)
        group.rmdir()


@contextlib.contextmanager
def memory_limit(pid: int, limit_bytes: int) -> Iterator[None]:
    """Ends a process by the kernel's OOM killer when it takes more, from now on."""
    with _group("memory", f"memory-{pid}") as group:
        old = group / "memory.limit_in_bytes"
        (old if old.exists() else group / "memory.max").write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(pid))
        yield


@contextlib.contextmanager
def cpu_share(pid: int, share: float) -> Iterator[None]:
    """Gives all threads of a process together that part of one core."""
    period_us = 20_000
    quota_us = int(period_us * share)
    with _group("cpu", f"cpu-{pid}") as group:
        old = group / "cpu.cfs_quota_us"
        if old.exists():
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            old.write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {period_us}")
        (group / "cgroup.procs").write_text(str(pid))
        yield
