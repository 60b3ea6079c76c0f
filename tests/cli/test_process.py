from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from tests.cli.stand_ins import PROGRAM

from octavo.cli.process import Process, Report


def process_of(tmp_path: Path, *command: str) -> Process:
    return Process("p", command, environ=dict(os.environ), log=tmp_path / "p.log")


def test_reports_come_in_order_and_end_with_the_process(tmp_path: Path) -> None:
    async def run() -> list[Report]:
        process = process_of(tmp_path, sys.executable, str(PROGRAM), "engine", "no-model")
        reports = [report async for report in process.start_reporting()]
        assert await process.wait() == "exit status 3"
        return reports

    model, failed = asyncio.run(run())
    assert model == Report(stage="model", text="found in package, 92 MB", seconds=0.1, done=True)
    assert (failed.stage, failed.code, failed.help) == ("failed", "OCT-1202", "get it")


def test_end_is_told_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    async def run() -> str:
        process = process_of(tmp_path, "/bin/sh", "-c", "echo first; echo the cause; exit 7")
        await process.start()
        return await process.wait()

    assert asyncio.run(run()) == "exit status 7: the cause"


def test_process_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    async def run() -> str:
        process = process_of(tmp_path, "/bin/sh", "-c", "trap '' TERM; echo up; sleep 60")
        await process.start()
        while not (tmp_path / "p.log").read_text():
            await asyncio.sleep(0.01)
        await process.stop(0.1)
        assert not process.is_running
        return await process.wait()

    assert asyncio.run(run()) == "SIGKILL: up"


def test_stopping_what_never_started_is_nothing(tmp_path: Path) -> None:
    asyncio.run(process_of(tmp_path, "/bin/true").stop(1.0))
