"""Cores and memory as a cgroup allows."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from octavo.engine.machine import available_cores, free_memory_bytes


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_a_cgroup_the_host_counts(tmp_path: Path) -> None:
    assert available_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert free_memory_bytes(tmp_path) <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "1000000\n", "memory.current": "400000\n"},
        {
            "memory/memory.limit_in_bytes": "1000000\n",
            "memory/memory.usage_in_bytes": "400000\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_memory_limit_leaves_what_is_not_used(tmp_path: Path, files: dict[str, str]) -> None:
    assert free_memory_bytes(write(tmp_path, files)) == 600_000


def test_unlimited_memory_is_the_hosts(tmp_path: Path) -> None:
    root = write(tmp_path, {"memory.max": "max\n", "memory.current": "1\n"})
    assert free_memory_bytes(root) > 1_000_000


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, len(os.sched_getaffinity(0))),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        (
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            len(os.sched_getaffinity(0)),
        ),
    ],
    ids=["v2", "v2-max", "v1", "v1-none"],
)
def test_a_cpu_quota_bounds_the_cores(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    assert available_cores(write(tmp_path, files)) == cores
