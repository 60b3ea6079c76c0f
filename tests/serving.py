"""`octavo serve` as a test runs it: a real model, every process on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

SMALL = ["--port", "0", "--kv-bytes", "100000000", "--max-model-len", "1024"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "octavo.cli", *arguments]


def environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


class Serving:
    """A running `octavo serve`."""

    def __init__(self, logs: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command("serve", *SMALL, "--log-dir", str(logs), *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ(),
        )
        self.shown = ""
        try:
            self.read_until("Ctrl-C drains")
        except BaseException:
            self.close()
            raise
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        while text not in self.shown:
            line = self.process.stdout.readline()
            assert line, self.shown
            self.shown += line

    def line(self, label: str) -> str:
        (line,) = [x for x in self.shown.splitlines() if x.split()[:1] == [label]]
        return line.strip().removeprefix(label).strip()

    @property
    def url(self) -> str:
        return self.line("API").split("/v1")[0]

    def pids(self, program: str) -> list[int]:
        return [c.pid for c in self.children if program in " ".join(c.cmdline())]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.shown += self.process.stdout.read()
        status = self.process.wait(timeout=60)
        self.close()
        _, alive = psutil.wait_procs(self.children, timeout=10)
        assert alive == []
        return status

    def close(self) -> None:
        """Kills what still runs and closes the pipe; may be called again."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
