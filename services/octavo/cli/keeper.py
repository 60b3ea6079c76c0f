"""Keeps processes alive: starts an engine, shows its reports, starts again what has died."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from octavo.cli.process import Process, Report
from octavo.cli.view import View
from octavo.v1 import common_pb2
from octavo.v1.errors import ENGINE_DID_NOT_START, PROCESS_ENDED, OctavoError

FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0
STEADY_S = 60.0
"""What lived this long starts again with the first delay."""


def next_delay(delay_s: float, lived_s: float) -> float:
    """Returns the wait before the next start, after a life of `lived_s` seconds."""
    return FIRST_DELAY_S if lived_s >= STEADY_S else min(delay_s * 2, MAX_DELAY_S)


async def keep_up(process: Process, view: View) -> None:
    """Starts a process again, until cancelled, each time it ends: one that serving can miss."""
    loop = asyncio.get_running_loop()
    delay_s = FIRST_DELAY_S / 2
    begin = loop.time()
    while True:
        reason = await process.wait()
        delay_s = next_delay(delay_s, loop.time() - begin)
        view.line(f"{process.name} ended: {reason}; next start in {delay_s:g} s")
        await asyncio.sleep(delay_s)
        begin = loop.time()
        await process.start()
        view.line(f"{process.name} is started again")


class Keeper:
    """One engine through all its lives."""

    def __init__(self, process: Process, view: View) -> None:
        self.process = process
        self.ready = asyncio.Event()
        """Set once the first life serves."""
        self._view = view
        self._delay_s = FIRST_DELAY_S / 2

    async def run(self) -> None:
        """Runs until cancelled; raises OctavoError when the very first start fails."""
        loop = asyncio.get_running_loop()
        while True:
            begin = loop.time()
            error = await self._live()
            if not self.ready.is_set():
                raise error
            self._delay_s = next_delay(self._delay_s, loop.time() - begin)
            self._view.line(f"{error.message}; next start in {self._delay_s:g} s")
            await asyncio.sleep(self._delay_s)

    async def _live(self) -> OctavoError:
        """Runs the process once and returns what ended it."""
        name, failure, served = self.process.name, None, False
        loop = asyncio.get_running_loop()
        if not self.ready.is_set():
            self._view.stage(name, Report(stage="start"), loop.time())
        async with aclosing(self.process.start_reporting()) as reports:
            async for report in reports:
                if not self.ready.is_set():
                    self._view.stage(name, report, loop.time())
                if report.stage == "failed":
                    failure = report
                elif report.stage == "ready" and report.done:
                    if self.ready.is_set():
                        self._view.line(f"{name} serves again")
                    self.ready.set()
                    served = True
        reason, log = await self.process.wait(), str(self.process.log)
        if served:
            return OctavoError(PROCESS_ENDED, process=name, reason=reason, log=log)
        if failure is not None:
            return as_error(failure)
        return OctavoError(ENGINE_DID_NOT_START, engine=name, reason=reason, log=log)


def as_error(report: Report) -> OctavoError:
    """Returns the error of a failed start, in the engine's own words."""
    error = OctavoError.from_proto(common_pb2.Error(code=report.code, message=report.text))
    error.help = report.help
    return error
