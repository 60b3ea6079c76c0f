"""Simulated gateway processes: all of production but the HTTP server and gRPC."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from typing import ClassVar

from prometheus_client import CollectorRegistry
from tests.sim.connection import Connection
from tests.sim.engine_life import PORT, Site
from tests.sim.engine_link import SimLink
from tests.sim.engines import EnginePlace
from tests.sim.env import SimEnv
from tests.sim.history import History, Try
from tests.sim.process import Process

from octavo.gateway import attempts, records
from octavo.gateway.admission import Admission
from octavo.gateway.api import running
from octavo.gateway.app import App, build_app
from octavo.gateway.attempts import Attempt, Loss
from octavo.gateway.claims import Claims
from octavo.gateway.config import GatewayConfig
from octavo.gateway.demand import Demand
from octavo.gateway.discovery import Endpoint
from octavo.gateway.dispatch import Dispatcher, ResumePolicy
from octavo.gateway.fleet import Fleet
from octavo.gateway.last_words import see_out
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.model_card import ModelLoader
from octavo.gateway.once import Once
from octavo.gateway.records import Records
from octavo.gateway.redis_store import RedisStore
from octavo.gateway.replica import Replica
from octavo.gateway.static_discovery import StaticDiscovery
from octavo.runtime import telemetry
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import OctavoError

REDIS = "redis://redis:6379/0"
KEYED_GRACE_S = 5.0
FORGET_S = 1.2
STOP_S = 20.0
PIECE_BYTES = 1500
LEAST_SILENCE_S, MOST_SILENCE_S = 2.4, 4.5
"""Suspicion comes after 3 s, counted in ticks of which the first may be a part."""


class Loader(ModelLoader):
    """Shares tokenizers between all gateways of all runs: to check a new one takes 50 ms."""

    _shared: ClassVar[dict[bytes, Tokenizer]] = {}

    def __init__(self, env: SimEnv) -> None:
        super().__init__(env)
        self._tokenizers = self._shared


class WatchedReplica(Replica):
    """Notes each attempt sent and each word heard."""

    history: History
    gateway: str
    life: int
    last_heard = 0.0

    @property
    def session(self) -> object | None:
        """The present one."""
        return self._session

    def submit(
        self,
        request: engine_pb2.GenerateRequest,
        *,
        hashes: Sequence[BlockHash],
        prefill_tokens: int,
    ) -> Attempt:
        fit = self.ready and self.stage != engine_pb2.STAGE_DRAINING
        detail = f"{self.gateway} chose {self.name} (stage {self.stage}) for {request.request_id}"
        self.history.check(fit, "G3", detail)
        self.history.send(request, sent_by=(self.gateway, self.life), to=(self.name, self.epoch))
        return super().submit(request, hashes=hashes, prefill_tokens=prefill_tokens)

    def _close_session(self, reason: str, loss: Loss = Loss.BROKEN) -> None:
        if reason.startswith("silent"):
            self.history.count("gateway.suspects")
            silent = asyncio.get_running_loop().time() - self.last_heard
            detail = f"{self.gateway} suspects {self.name}, heard {silent:.2f} s ago"
            self.history.check(silent >= LEAST_SILENCE_S, "G6", detail)
        super()._close_session(reason, loss)

    def _heard(self, update: engine_pb2.SessionUpdate) -> None:
        self.last_heard = asyncio.get_running_loop().time()
        super()._heard(update)


class GatewayPlace:
    """An address with a gateway process, most of the time."""

    def __init__(self, index: int, site: Site, engines: Sequence[EnginePlace]) -> None:
        self.name = f"gateway{index}"
        self.alive = self.is_up = False
        """There is a process; it has begun to work."""
        self.paused = False
        self.stays_dead = False
        self.lives = 0
        self.deaths: list[float] = []
        self.env: SimEnv
        self.fleet: Fleet
        self.replicas: list[WatchedReplica] = []
        self.dispatcher: Dispatcher
        self.records: Records
        self.once: Once
        self.connections: dict[Connection, asyncio.Task[None]] = {}
        self._net = site.net
        self._history = site.history
        self._health = site.health
        self._options = site.options
        self._seed = site.seed
        self._engines = engines
        self._app: App
        self._loop = site.net.loop
        self._process: Process
        self._sessions: dict[str, tuple[object | None, float]] = {}
        """Each replica's session, and since when it is under watch."""
        self._last_paused = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts a process, unless one runs."""
        self.stays_dead = False
        if self.alive:
            return
        self.alive, self.is_up = True, False
        self.lives += 1
        self._mark("dead", ill=False)
        self._process = self._loop.process(self.name)
        self._main = self._loop.spawn(self._process, self._live())

    async def _live(self) -> None:
        try:
            await self._run()
        except Exception as error:
            self._history.violate("C2", f"{self.name} crashed: {error!r}")

    async def _run(self) -> None:
        env = self.env = SimEnv(self._seed, f"{self.name}.{self.lives}", self._loop.time)
        metrics, loader = GatewayMetrics(CollectorRegistry()), Loader(env)
        self.replicas = []

        def connect(endpoint: Endpoint, on_ready: Callable[[], None]) -> WatchedReplica:
            link = SimLink(self._net, src=self.name, dst=endpoint.address, port=PORT)
            replica = WatchedReplica(endpoint, link, loader=loader, metrics=metrics, env=env)
            replica.history, replica.gateway = self._history, self.name
            replica.life = self.lives
            self.replicas.append(replica)
            return replica

        self._sessions.clear()
        self.fleet = Fleet(
            StaticDiscovery(engine.name for engine in self._engines),
            connect,
            demand=Demand(hold_s=0.0, max_held=0, metrics=metrics),
            metrics=metrics,
        )
        self._store = RedisStore(REDIS)
        self.records = Records(self._store, metrics=metrics, ttl_s=600)
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            records=self.records,
            metrics=metrics,
            env=env,
            tracer=telemetry.tracer(),
            resume=ResumePolicy(mode="exact", wait_s=8.0),
        )
        claims = Claims(self._store, metrics=metrics, owner=env.new_id(), ttl_s=600)
        self.once = Once(
            self.dispatcher, claims, metrics=metrics, env=env, ttl_s=600, grace_s=KEYED_GRACE_S
        )
        config = GatewayConfig(heartbeat_s=1.0)
        self._admission = Admission(
            max_requests=config.max_requests,
            max_body_bytes_total=config.max_body_bytes_total,
            metrics=metrics,
        )
        self._app = build_app(
            config=config,
            admission=self._admission,
            fleet=self.fleet,
            dispatcher=self.dispatcher,
            once=self.once,
            records=self.records,
            env=env,
        )
        self._history.trace("start", self.name)
        self.is_up = True
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.fleet.run())
            tasks.create_task(self.records.run())

    def serve(self, connection: Connection) -> None:
        """Takes a client's connection."""
        task = self._loop.spawn(self._process, self._serve(connection))
        self.connections[connection] = task
        task.add_done_callback(lambda _: self._served(connection))

    def _served(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        connection.end("broken")  # unless it has ended: the task was cancelled before it began

    async def _serve(self, connection: Connection) -> None:
        try:
            await self._app(connection.scope(), connection.receive, connection.send)
        except Exception as error:
            self._history.violate("C2", f"{self.name} let an exception out: {error!r}")
        connection.end("incomplete")

    @property
    def is_ready(self) -> bool:
        """Whether it can use every engine."""
        return self.alive and bool(self.replicas) and all(r.ready for r in self.replicas)

    @property
    def draining(self) -> bool:
        """Whether it takes nothing new."""
        return self.alive and self.fleet.draining

    def was_paused_since(self, at: float) -> bool:
        """Whether it stood still at any time after that."""
        return self.paused or self._last_paused >= at

    def kill(self) -> None:
        """Ends the process as kill -9 does; a keeper starts another."""
        if self.alive:
            self._ended()

    def _ended(self) -> None:
        self.resume()
        self.alive = False
        self._health.well(self.name)
        self._mark("dead", ill=True)
        self.deaths.append(self._loop.time())
        self._net.kill_host(self.name)
        for connection in list(self.connections):
            connection.end("broken")
        self.connections.clear()
        # In no process: one that a failpoint kills would take its keeper with it.
        context = contextvars.Context()
        self._loop.call_later(self._options.restart_s, self._restart, context=context)

    def _restart(self) -> None:
        if not self.stays_dead:
            self.start()

    def pause(self) -> None:
        """Stops the process, as SIGSTOP or a blocked event loop does."""
        if self.alive:
            self.paused = True
            self._mark("paused", ill=True)
            self._net.pause_host(self.name)

    def resume(self) -> None:
        """Lets it go on."""
        if self.paused:
            self.paused, self._last_paused = False, self._loop.time()
            self._mark("paused", ill=False)
            self._net.resume_host(self.name)

    def heal(self) -> None:
        """Makes all well, by another process if need be."""
        self.resume()
        if self.draining:
            self.kill()
        self.start()

    def _mark(self, what: str, *, ill: bool) -> None:
        self._health.mark(self.name, what, ill=ill)

    def drain(self, grace_s: float) -> None:
        """Sends SIGTERM; a keeper starts another process when it has ended."""
        if self.alive and not self.fleet.draining:
            self.fleet.drain()
            self._tasks.append(asyncio.create_task(self._drain(grace_s, self.lives)))

    async def _drain(self, grace_s: float, life: int) -> None:
        stopping = self._loop.spawn(self._process, self._stop(grace_s))
        await asyncio.wait((stopping,), timeout=grace_s + 5.0)
        if self.alive and self.lives == life:
            self._ended()

    async def _stop(self, grace_s: float) -> None:
        """Does what the server's shutdown and `process.serve` do."""
        await see_out(self._until_idle(), self.once.abort, after_s=grace_s)
        for task in list(self.connections.values()):
            task.cancel()
        await asyncio.gather(*self.connections.values(), return_exceptions=True)
        self._main.cancel()
        await asyncio.gather(self._main, return_exceptions=True)
        await self.once.close(2.0)
        await self.records.flush(2.0)
        await self._store.close()

    async def _until_idle(self) -> None:
        """Waits for connections, those included that bring their last request meanwhile."""
        while self.connections:
            await asyncio.wait(self.connections.values())

    async def stop(self) -> None:
        """Ends all at the end of the run, cleanly if it runs."""
        self.stays_dead = True
        for task in self._tasks:
            task.cancel()
        if self.alive and not self.paused:
            stopping = self._loop.spawn(self._process, self._stop(1.0))
            done, _ = await asyncio.wait((stopping,), timeout=STOP_S)
            if self.alive and (not done or stopping.exception() is not None):
                self._history.violate("C2", f"{self.name} cannot stop: {stopping!r}")
        self._net.kill_host(self.name)

    async def record(self, id: str) -> dict[str, object] | None:
        """Looks a record up as its endpoint does; None when it is not at hand."""
        reading = self._loop.spawn(self._process, self.records.get(id))
        reading.add_done_callback(lambda t: t.cancelled() or t.exception())
        await asyncio.wait((reading,), timeout=1.0)
        if not reading.done() or isinstance(reading.exception(), OctavoError):
            return None
        return reading.result()

    def forget_soon(self, attempt: Try) -> None:
        """A client has left: soon no engine that is well may run its request (E4)."""
        known = (*self.records._open.values(), *self.records._recent.values())
        ids = [r.id for r in known if r.client == attempt.label]
        self._loop.call_later(FORGET_S, self._check_forgotten, ids, self._loop.time())

    def _check_forgotten(self, ids: list[str], since: float) -> None:
        now = self._loop.time()
        for engine in self._engines:
            life = engine.life
            if life is None or not self._health.steady(engine.name, self.name, since, now):
                continue
            left = [t.proto.request_id for t in life.tickets() if t.proto.request_id in ids]
            detail = f"{engine.name} still runs {left}, whose client left {self.name}"
            self._history.check(not left, "E4", detail)

    def inspect(self) -> None:
        """Checks what must hold at every moment (G1, G4, G6)."""
        if not (self.alive and self.is_up) or self.paused or self._main.done():
            return
        now = self._loop.time()
        for replica in self.replicas:
            try:
                replica.table.check_integrity()
            except AssertionError as error:
                self._history.violate("G1", f"{self.name}, {replica.name}: {error!r}")
            silent = now - replica.last_heard
            session, since = self._sessions.get(replica.name, (None, now))
            if session is not replica.session or self.was_paused_since(now - MOST_SILENCE_S):
                since = now
            self._sessions[replica.name] = (replica.session, since)
            silent = min(silent, now - since) if replica.session is not None else 0.0
            detail = f"{self.name} trusts {replica.name}, heard {silent:.2f} s ago"
            self._history.check(silent <= MOST_SILENCE_S, "G6", detail)
            for attempt in replica.table._open.values():
                self._check_bound(attempt._waiting_bytes, attempts.MAX_WAITING_BYTES, "attempt")
        for holder in self._admission._holders:
            if holder.is_slow:
                self._check_bound(holder.held_bytes, running.MAX_PENDING_BYTES, "client")
        self._check_bound(self.records.num_waiting + PIECE_BYTES, records.MAX_WAITING, "records")

    def _check_bound(self, size: int, limit: int, what: str) -> None:
        """One piece may always lie there, however large."""
        detail = f"{self.name} keeps {size} for its {what}, {limit} are allowed"
        self._history.check(size <= limit + PIECE_BYTES, "G4", detail)
