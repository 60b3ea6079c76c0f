"""A process of a cluster: its log, its end, its next life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
from tests.cluster.places import ROOT
from tests.cluster.record import Record

_LAUNCHER = ROOT / "services" / "octavo" / "cli" / "child.py"
"""Asks the kernel for the process's end when its parent ends."""
_END_S = 20.0


class Program:
    """One program that can be started, killed and started again, with one log for all its lives.

    Args:
        name: of its log file.
        command: the absolute path of the program and its arguments.
        record: of the cluster that it belongs to.
        bound: whether it dies with the thread that starts it, so that it outlives no test run.
        env: more variables.
        before: gives a command that runs ours as its only child, asked at each start.
        claims: a descriptor that it holds open as long as it lives.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        record: Record,
        bound: bool,
        env: Mapping[str, str] | None = None,
        before: Callable[[], list[str]] | None = None,
        claims: int | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = record.folder / f"{name}.log"
        self._record = record
        self._bound = bound
        self._env = dict(env or {})
        self._before = before
        self._claims = () if claims is None else (claims,)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its present or last life."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the program itself."""
        assert self._process is not None
        if self._before is None:
            self._process.send_signal(number)
        else:
            for child in psutil.Process(self._process.pid).children():
                child.send_signal(number)

    @property
    def log(self) -> str:
        """What it has logged in all its lives."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Begins a life."""
        assert not self.alive
        before = self._before() if self._before is not None else []
        launcher = [sys.executable, str(_LAUNCHER), str(os.getpid())] if self._bound else []
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*launcher, *before, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._env},
                cwd=self._record.folder,
                pass_fds=self._claims,
                start_new_session=True,  # an interrupt from the keyboard is not for it
            )
        self._record.process(self.name, self._process.pid)

    def terminate(self) -> None:
        """Asks it to end and waits for that; kills it when it does not."""
        if self._process is not None and self.alive:
            self.send(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """kill -9; returns when it is gone."""
        if self._process is not None and self.alive:
            self.send(signal.SIGKILL)
            self._process.wait()

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Waits for a condition that it brings about; fails at once when it ends before."""
        wait_until(condition, timeout_s, self._complaint, while_true=lambda: self.alive)

    def _complaint(self) -> str:
        state = "is not ready" if self.alive else "ended"
        return f"{self.name} {state}; its log ends with\n{self.log[-3000:]}"


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float,
    complaint: Callable[[], str],
    *,
    while_true: Callable[[], bool] = lambda: True,
) -> None:
    """Polls until a condition holds.

    Raises:
        TimeoutError: it did not in time, or `while_true` no longer holds.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end or not while_true():
            raise TimeoutError(complaint())
        time.sleep(0.05)
