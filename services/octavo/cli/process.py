"""A child process of `octavo serve`: its log file, its start-up report, its end.

Children run in sessions of their own, so Ctrl-C reaches only the parent, and they die with it,
however it ends (child.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import msgspec

LAUNCHER = Path(__file__).with_name("child.py")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an engine's start-up report."""

    stage: str
    """model, weights, memory, warm-up, pins, ready or failed."""
    text: str = ""
    seconds: float = 0.0
    done: bool = False
    code: str = ""
    """With failed: the catalogue's code."""
    help: str = ""


class Process:
    """One child process, startable again after its end."""

    def __init__(
        self, name: str, command: Sequence[str], *, environ: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = log
        self._environ = environ
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """The process id; zero before the first start."""
        return self._process.pid if self._process else 0

    async def start(self, *arguments: str, pass_fds: Sequence[int] = ()) -> None:
        """Starts it with more arguments; output is appended to the log."""
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launcher,
                *self.command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
                pass_fds=pass_fds,
            )

    async def start_reporting(self) -> AsyncGenerator[Report, None]:
        """Starts it with --report-fd and yields its reports until it closes them."""
        read_fd, write_fd = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb")
        )
        try:
            try:
                await self.start("--report-fd", str(write_fd), pass_fds=(write_fd,))
            finally:
                os.close(write_fd)
            async for line in reader:
                yield msgspec.json.decode(line, type=Report)
        finally:
            transport.close()

    async def wait(self) -> str:
        """Waits for the end and says in words how it was."""
        assert self._process is not None
        status = await self._process.wait()
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        last = self._last_line()
        return f"{how}: {last}" if last else how

    async def stop(self, timeout_s: float) -> None:
        """Asks it to end, and kills it when it has not after `timeout_s`."""
        if self._process is None:
            return
        if self.is_running:
            self._process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        """Ends it and its own children at once."""
        if self._process is not None and self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _last_line(self) -> str:
        lines = self.log.read_bytes()[-4096:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]
