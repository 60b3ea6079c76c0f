"""A process of the platform that dies with the test, and whose log can be waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import psutil
from tests.bounds import EVENTUALLY_S

ROOT = Path(__file__).parents[2]
_LAUNCHER = ROOT / "services" / "octavo" / "cli" / "child.py"
"""Asks the kernel for the process's end when its parent ends."""


def _bound() -> list[str]:
    """Returns what binds a command to the life of this process."""
    return [sys.executable, str(_LAUNCHER), str(os.getpid())]


def environ(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns this environment, with the way to our sources."""
    folders = [ROOT, *(ROOT / name for name in ("services", "operator", "kernels", "proto"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **extra}


class ChildProcess:
    """One program that can be started, killed, stopped, and started again.

    Args:
        name: of its log file.
        command: what runs, without the interpreter.
        folder: where its log goes, one file over all its lives.
        env: more variables.
        metrics_port: where its Prometheus text is served.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        folder: Path,
        metrics_port: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.env = dict(env or {})
        self.before: list[str] = []
        """A command that runs ours, such as a tracer."""
        self.log_path = folder / f"{name}.log"
        self.metrics_port = metrics_port
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        """Of its present or last life."""
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begins a life."""
        assert not self.alive
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*_bound(), *self.before, sys.executable, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ(self.env),
                cwd=ROOT,
            )

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9, also when it is stopped; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def ended(self, timeout_s: float = EVENTUALLY_S) -> int:
        """Waits for its end and returns the status; negative: the signal."""
        assert self._process is not None
        async with asyncio.timeout(timeout_s):
            while (status := self._process.poll()) is None:
                await asyncio.sleep(0.01)
        return status

    @property
    def log(self) -> str:
        """What its present life has logged."""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    async def logged(self, text: str, timeout_s: float = 180.0) -> None:
        """Waits until its present life has logged a text; fails at once when it ends before."""
        async with asyncio.timeout(timeout_s):
            while text not in self.log:
                if not self.alive and text not in self.log:
                    raise AssertionError(f"{self.name} ended without {text!r}:\n{self.log[-3000:]}")
                await asyncio.sleep(0.02)

    async def metrics(self) -> dict[str, float]:
        """Returns its metrics: `name{labels}` → value."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
        rows = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, value in rows}

    async def metric(self, name: str) -> float:
        """Returns the sum of one metric over all its labels; zero when it has none yet."""
        rows = (await self.metrics()).items()
        return sum(v for k, v in rows if k == name or k.startswith(name + "{"))

    @property
    def usage(self) -> psutil.Process:
        """Its present life as the kernel sees it."""
        return psutil.Process(self.pid)
