"""The engine's real gRPC server before any model is loaded: streams that are open and quiet.

As a program it prints its address; SIGUSR1 then blocks its event loop, while gRPC's own threads
live on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults.child_process import ROOT, environ

from octavo.engine.server import EngineServer
from octavo.engine.session import EngineShell
from octavo.engine.spans import RequestSpans
from octavo.v1 import engine_pb2


class BareEngine:
    """An async context; `address` is where it listens."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self.shell = EngineShell(epoch=7, spans=RequestSpans())
        self.port = 0

    @property
    def address(self) -> str:
        """Of its gRPC server."""
        return f"{self._host}:{self.port}"

    async def __aenter__(self) -> BareEngine:
        self._server = EngineServer(self.shell, lambda: "id")
        self.port = await self._server.start(f"{self._host}:{self.port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    def say(self, detail: str) -> None:
        """Sends one message on every state stream."""
        self.shell.feed.set_stage(engine_pb2.STAGE_LOADING, detail)


@asynccontextmanager
async def bare_engine_process() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The same in a process of its own; yields its address and the process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests/faults/bare_engine.py"),
        stdout=asyncio.subprocess.PIPE,
        env=environ({}),
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    try:
        yield address, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def block_loop(process: asyncio.subprocess.Process) -> None:
    """Makes the main thread hang, and with it the event loop."""
    process.send_signal(signal.SIGUSR1)


async def _main() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))
    async with BareEngine() as engine:
        sys.stdout.write(f"{engine.address}\n")
        sys.stdout.flush()
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(_main())
