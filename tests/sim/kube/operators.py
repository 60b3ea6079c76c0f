"""Simulated operator processes: all of production but kopf, lightkube and HTTP."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection
from typing import Any, Final
from unittest import mock

from tests.sim.env import SimEnv
from tests.sim.history import History
from tests.sim.kube.api_server import ApiServer, Call, SimCluster
from tests.sim.kube.gateways import SERVICE, Gateways
from tests.sim.loop import SimLoop

from octavo.operator import process
from octavo.operator.config import OperatorConfig
from octavo.operator.kinds import Kind
from octavo.operator.watches import Notice

LEASE: Final = "octavo/octavo-operator"
RESTART_S: Final = 1.0


async def watch(
    kinds: Collection[Kind],
    namespaces: Collection[str],
    *,
    notice: Notice,
    connection: Callable[[], Any],
    request_timeout_s: float,
    started: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Watches as `watches.watch` does; the connection is the cluster itself."""
    cluster: SimCluster = connection()
    async with asyncio.TaskGroup() as tasks:
        followers = [tasks.create_task(cluster.follow(kind, notice)) for kind in kinds]
        await stop.wait()
        for follower in followers:
            follower.cancel()


class OperatorPlace:
    """Where one operator runs, one process after the other.

    Args:
        name: of the place.
        loop: runs it.
        server: what it talks to.
        gateways: whom it asks; None: there are none.
        history: gets what goes wrong.
        seed: of the run.
        leased: whether it needs the Lease.
    """

    def __init__(
        self,
        name: str,
        *,
        loop: SimLoop,
        server: ApiServer,
        gateways: Gateways | None,
        history: History,
        seed: int,
        leased: bool,
    ) -> None:
        self.name = name
        self.life = 0
        self.stays_dead = False
        self.is_paused = False
        self.dies_in = 0
        """Writes after which it is killed; zero: it is not."""
        self.parts: process._Parts | None = None
        self._loop, self._server, self._gateways = loop, server, gateways
        self._history, self._seed = history, seed
        self._config = OperatorConfig(
            gateway_service=str(SERVICE) if gateways else "",
            gateway_url="http://gateway/v1",
            gateway_poll_s=2.0,
            lease=LEASE if leased else "",
            workers=2,
        )
        self.cluster: SimCluster | None = None
        server.after.append(self._wrote)

    @property
    def is_alive(self) -> bool:
        return self.parts is not None

    @property
    def identity(self) -> str | None:
        """As whom it claims the Lease; None where it needs none."""
        lease = self.parts.lease if self.parts else None
        return lease._identity if lease else None

    def start(self) -> None:
        if self.is_alive:
            return
        self.life += 1
        env = SimEnv(self._seed, f"{self.name}.{self.life}", self._loop.time)
        self.cluster = SimCluster(self._server, self.name, self.life)
        self._process = self._loop.process(self.name)
        self._main = self._loop.spawn(self._process, self._serve(self.cluster, env))
        self._history.trace("start", self.name, self.life)

    async def _serve(self, cluster: SimCluster, env: SimEnv) -> None:
        """Does what `process.serve` does."""
        parts = self.parts = process._wire(self._config, cluster, env)  # type: ignore[arg-type]
        if parts.reports is not None and self._gateways is not None:
            parts.reports._client = self._gateways.client()
        try:
            await process._act(parts, lambda: cluster)  # type: ignore[arg-type,return-value]
        except Exception as error:
            self._history.violate("O0", f"{self.name} let an exception out: {error!r}")
        finally:
            if parts.lease is not None:
                await parts.lease.release()
        self._ended("gone")

    def kill(self) -> None:
        """Ends the process as SIGKILL does; a keeper starts another."""
        if self.is_alive:
            self.resume()
            self._loop.kill(self._process)
            self._ended("killed")

    def stop(self) -> None:
        """SIGTERM: it gives back the Lease."""
        if self.is_alive and not self.is_paused:
            self._loop.spawn(self._process, self._stop(self._main))

    async def _stop(self, main: asyncio.Task[None]) -> None:
        main.cancel()
        await asyncio.wait((main,), timeout=30.0)
        if self._main is main and self.is_alive:
            self._ended("stopped")

    def _ended(self, how: str) -> None:
        self._history.trace("end", self.name, self.life, how)
        self._history.count(f"end.{how}")
        self.check()
        self.parts = None
        # In no process: one that kills itself would take its keeper with it.
        self._loop.call_later(RESTART_S, self._restart, context=contextvars.Context())

    def _restart(self) -> None:
        if not self.stays_dead:
            self.start()

    def pause(self) -> None:
        if self.is_alive:
            self.is_paused = True
            self._loop.pause(self._process)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._loop.resume(self._process)

    def heal(self) -> None:
        self.resume()
        if self.cluster is not None:
            self.cluster.silent = False
        self.start()

    def check(self) -> None:
        """Nothing of it has crashed (O0)."""
        if self.parts is not None:
            failed = self.parts.metrics.reconciles.labels("failed")._value.get()
            self._history.check(not failed, "O0", f"{self.name}: a look ended by an exception")

    def _wrote(self, call: Call) -> None:
        if (call.operator, call.life) == (self.name, self.life) and self.dies_in:
            self.dies_in -= 1
            if not self.dies_in:
                self._history.fault("killed_after_write", f"{self.name} {call.verb} {call.name}")
                self.kill()


def patched() -> mock._patch[Any]:
    """A context in which operators watch as they can here."""
    return mock.patch.object(process, "watch", watch)
