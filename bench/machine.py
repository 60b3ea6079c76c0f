"""What the machine is, how busy it is, and what a server's processes take of it. Linux only."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.result import Load

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where numbers were measured, and how quiet it was before."""

    cpu: str
    cores: int
    memory_mib: int
    system: str
    load_average: float
    """Of the last minute, before anything was sent."""

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_mib / 1024:.0f} GiB, {self.system}, "
            f"load before {self.load_average:.2f}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """One process of a server."""

    command: str
    peak_rss_mib: float


def read_machine() -> Machine:
    """Looks at the machine."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_mib=psutil.virtual_memory().total // _MIB,
        system=f"{platform.system()} {platform.release().split('-')[0]}",
        load_average=os.getloadavg()[0],
    )


class Meter:
    """Measures what a run takes of the machine, from its making to `read`."""

    def __init__(self, server_pid: int | None) -> None:
        self._server_pid = server_pid
        self._begin = time.perf_counter()
        self._client_s = time.process_time()
        self._server_s = _cpu_s(server_pid) if server_pid else 0.0
        self._busy_s = _busy_s()

    def read(self) -> Load:
        """Returns what was taken so far."""
        client_s = time.process_time() - self._client_s
        if self._server_pid is None:
            return Load(client_cpu_s=client_s)
        busy_s = _busy_s() - self._busy_s
        # Below zero when a process of the server ended meanwhile and took its count with it.
        server_s = max(_cpu_s(self._server_pid) - self._server_s, 0.0)
        foreign_s = max(busy_s - server_s - client_s, 0.0)
        return Load(
            client_cpu_s=client_s,
            server_cpu_s=server_s,
            foreign_cores=foreign_s / (time.perf_counter() - self._begin),
            peak_rss_mib=sum(part.peak_rss_mib for part in memory_of(self._server_pid)),
        )


def memory_of(pid: int) -> list[ProcessMemory]:
    """Returns the processes of a tree, those that ended meanwhile left out."""
    parts: list[ProcessMemory] = []
    for process in _tree(pid):
        try:
            command = " ".join(process.cmdline()[:4]) or process.name()
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except (psutil.NoSuchProcess, psutil.ZombieProcess, OSError):
            continue
        parts.append(ProcessMemory(command=command, peak_rss_mib=_peak_rss_mib(status)))
    return parts


def _peak_rss_mib(status: str) -> float:
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_s(pid: int) -> float:
    total_s = 0.0
    for process in _tree(pid):
        try:
            times = process.cpu_times()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        total_s += times.user + times.system
    return total_s


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq + times.steal


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
