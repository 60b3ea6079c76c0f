"""Addresses at which simulated engine processes live, die and are started again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from tests.sim.engine_life import Life, ProcessDeathError, Site
from tests.sim.env import SimEnv


class EnginePlace:
    """An address with an engine process, most of the time."""

    def __init__(self, index: int, site: Site) -> None:
        self.name = f"engine{index}"
        self.life: Life | None = None
        self._slow_by = 1.0
        self.stays_dead = False
        self.paused = False
        self._site = site
        self._lives = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts a process with a new epoch, unless there is one."""
        self.stays_dead = False
        if self.life is not None:
            return
        self._lives += 1
        self._mark("dead", ill=False)
        env = SimEnv(self._site.seed, f"{self.name}.{self._lives}", self._site.net.loop.time)
        self.life = Life(self.name, self._site, env)
        self.life.slow_by = self._slow_by
        self._site.history.trace("start", self.name, self.life.epoch)
        self._spawn(self._see_through(self.life))

    def kill(self, cause: str) -> None:
        """Ends the process as kill -9 does; its keeper starts another unless told otherwise."""
        life, self.life = self.life, None
        if life is None:
            return
        running = tuple(sorted({t.proto.request_id for t in life.tickets()}))
        self._site.history.die(self.name, life.epoch, cause, running)
        self.resume()
        self._site.health.well(self.name)
        self._mark("dead", ill=True)
        self._site.net.kill_host(self.name)
        life.over.set()
        self._spawn(self._restart())

    def pause(self) -> None:
        """Stops process and host, as SIGSTOP does."""
        if self.life is not None:
            self.paused = True
            self._mark("paused", ill=True)
            self._site.net.pause_host(self.name)

    def resume(self) -> None:
        """Lets them go on."""
        if self.paused:
            self.paused = False
            self._mark("paused", ill=False)
            self._site.net.resume_host(self.name)

    def slow(self, factor: float) -> None:
        """Makes steps take so many times as long."""
        self._slow_by = factor
        if self.life is not None:
            self.life.slow_by = factor
        self._mark("slow", ill=factor > 1)

    def break_step(self) -> None:
        """Lets one step fail, through nobody's fault."""
        if self.life is not None:
            self.life.step_error = True

    def stick(self) -> None:
        """Lets the next step never end, while the process goes on answering."""
        if self.life is not None:
            self.life.stuck = True
            self._mark("stuck", ill=True)

    def heal(self) -> None:
        """Makes all well, by another process if need be."""
        self.resume()
        self.slow(1.0)
        life = self.life
        if life is not None and (life.stuck or life.draining):
            self.kill("healed")
        self.start()

    def _mark(self, what: str, *, ill: bool) -> None:
        self._site.health.mark(self.name, what, ill=ill)

    def drain(self, grace_s: float) -> None:
        """Sends SIGTERM."""
        if self.life is not None and not self.life.draining:
            self.life.draining = True
            self._mark("draining", ill=True)
            self._spawn(self._drain(self.life, grace_s))

    def stop(self) -> None:
        """Ends everything at the end of the run."""
        self.stays_dead = True
        self._site.net.kill_host(self.name)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _restart(self) -> None:
        await asyncio.sleep(self._site.options.restart_s)
        if not self.stays_dead:
            self.start()

    async def _drain(self, life: Life, grace_s: float) -> None:
        draining = life.spawn(life.drain(grace_s))
        await life.until(draining)
        if self.life is life:
            self.kill("drained")

    async def _see_through(self, life: Life) -> None:
        """Waits for the end of a process, by its own fault or from outside."""
        tasks = [life.spawn(life.serve()), life.spawn(life.guard())]
        await life.until(*tasks)
        if self.life is not life:
            return
        try:
            cause = next(t.result() for t in tasks if t.done())
        except ProcessDeathError as death:
            cause = str(death) or "failpoint"
        except Exception as error:  # whatever production would have died of
            self._site.history.violate("E1", f"{self.name} crashed: {error!r}")
            return
        self.kill(cause)
