"""Programs that stand for engine and gateway under `octavo serve`: `stand_ins.py ROLE MODE …`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

PROGRAM = Path(__file__)


def report(fd: int, **line: object) -> None:
    os.write(fd, json.dumps(line).encode() + b"\n")


def engine(mode: str, *arguments: str) -> None:
    fd = int(arguments[arguments.index("--report-fd") + 1])
    report(fd, stage="model", text="found in package, 92 MB", seconds=0.1, done=True)
    if mode == "no-model":
        report(fd, stage="failed", code="OCT-1202", text="the model 'x' is not here", help="get it")
        sys.exit(3)
    if mode == "crash":
        sys.exit("Traceback …\nValueError: the cause")
    report(fd, stage="weights", text="packed", seconds=0.0, done=False)
    report(fd, stage="weights", text="packed", seconds=0.2, done=True)
    report(fd, stage="ready", seconds=0.0, done=True)
    if mode == "dies-once" and not (marker := Path(arguments[0])).exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


async def serve(port: int, *, stubborn: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        body = b'{"data": [{"id": "stand-in"}]}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, (lambda: None) if stubborn else stop.set
    )
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        await stop.wait()
    os.write(1, b"drained\n")


if __name__ == "__main__":
    role, mode, *rest = sys.argv[1:]
    if role == "engine":
        engine(mode, *rest)
    elif mode == "ends":
        sys.exit("no more")
    else:
        asyncio.run(serve(int(rest[0]), stubborn=mode == "stubborn"))
