"""Starts, watches and ends the processes of `octavo serve`.

Order of a start: store and gateway first, so that the API answers 503 with the stage from the
first second, then the engines. Order of an end: the gateway drains, then the engines, then the
store.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path

import msgspec

from octavo.cli.keeper import Keeper, keep_up
from octavo.cli.network import http_get, url_of
from octavo.cli.plan import ProcessPlan, ServePlan
from octavo.cli.process import Process
from octavo.cli.view import View
from octavo.v1.errors import PROCESS_ENDED, OctavoError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.1
_ENGINE_STOP_S = 10.0
_SPARE_S = 5.0
"""Beyond the gateway's own drain time, before it is killed."""


class _Models(msgspec.Struct):
    class Model(msgspec.Struct):
        id: str

    data: list[Model]


class Supervisor:
    """All processes of one `octavo serve`, from start to end."""

    def __init__(self, plan: ServePlan, view: View, *, logs: Path) -> None:
        self._plan = plan
        self._view = view
        self._logs = logs
        self._gateway = self._process(plan.gateway)
        self._store = self._process(plan.store) if plan.store else None
        self._keepers = [Keeper(self._process(engine), view) for engine in plan.engines]
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a signal asks for the end; carries the error that makes one necessary."""
        self._tasks: list[asyncio.Task[None]] = []
        self._killed = False

    async def run(self) -> int:
        """Serves until a signal or a fatal error; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        drain_s = _SPARE_S
        try:
            self._spawn(self._ticking())
            if self._store is not None:
                await self._store.start()
                self._spawn(keep_up(self._store, self._view))
            await self._gateway.start()
            self._spawn(_watch(self._gateway))
            for keeper in self._keepers:
                self._spawn(keeper.run())
            self._spawn(self._announce())
            await self._ended
            drain_s += self._plan.drain_s
        finally:
            await self._end(drain_s)
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        return 1 if self._killed else 0

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Runs a part of the whole; its error ends everything."""
        task = asyncio.create_task(coroutine)
        task.add_done_callback(self._on_done)
        self._tasks.append(task)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _process(self, plan: ProcessPlan) -> Process:
        log = self._logs / f"{plan.name}.log"
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        return Process(plan.name, plan.command, environ=plan.environ, log=log)

    def _processes(self) -> list[Process]:
        engines = [keeper.process for keeper in self._keepers]
        return [self._gateway, *engines, *([self._store] if self._store else [])]

    def _on_signal(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
            self._view.line("draining; Ctrl-C again to kill")
            return
        self._killed = True
        for process in self._processes():
            process.kill()

    async def _ticking(self) -> None:
        while True:
            self._view.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(_POLL_S)

    async def _announce(self) -> None:
        """Waits until requests are served, then says how to send them."""
        begin = asyncio.get_running_loop().time()
        for keeper in self._keepers:
            await keeper.ready.wait()
        host, port = self._plan.host, self._plan.port
        while (await http_get(host, port, "/readyz"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)  # another process becomes ready; it cannot set an event
        _, body = await http_get(host, port, "/v1/models")
        models = msgspec.json.decode(body, type=_Models).data
        total = asyncio.get_running_loop().time() - begin
        self._view.note(f"{'total':>70} {total:6.1f} s\n")
        for line in summary(url_of(host, port), models[0].id, self._logs):
            self._view.line(line)

    async def _end(self, drain_s: float) -> None:
        """Ends all processes in order; what does not end in time is killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._gateway.stop(drain_s)
        await asyncio.gather(*(k.process.stop(_ENGINE_STOP_S) for k in self._keepers))
        if self._store is not None:
            await self._store.stop(_SPARE_S)


async def _watch(process: Process) -> None:
    """Raises when a process ends without which nothing can be served."""
    reason = await process.wait()
    raise OctavoError(PROCESS_ENDED, process=process.name, reason=reason, log=str(process.log))


def summary(url: str, model: str, logs: Path) -> list[str]:
    """Returns the lines that say how to use what runs now."""
    body = msgspec.json.encode(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello!"}]}
    ).decode()
    return [
        f"  API      {url}/v1      any OpenAI client, no key",
        f"  Try      curl -N {url}/v1/chat/completions -d '{body}'",
        f"  Chat     octavo chat{'' if url.endswith(':8000') else f' --url {url}'}",
        f"  Logs     {logs}",
        "  Ctrl-C drains and ends",
    ]
