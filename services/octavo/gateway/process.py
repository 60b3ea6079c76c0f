"""One gateway process: wiring, server, signals.

Listens at once; engines are connected behind it. SIGTERM or SIGINT ends it gracefully: it is
unready and for leave_s serves as before; then it takes nothing new, and running answers finish
within drain_s, or they end with an error. A second signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import FrameType

import structlog
import uvicorn
import uvloop
from prometheus_client import REGISTRY

from octavo.gateway.admission import Admission
from octavo.gateway.api.status import Status
from octavo.gateway.app import App, build_app
from octavo.gateway.claims import Claims
from octavo.gateway.config import GatewayConfig
from octavo.gateway.connection import Connection
from octavo.gateway.demand import Demand
from octavo.gateway.discovery import Discovery, Endpoint
from octavo.gateway.dispatch import Dispatcher, ResumePolicy
from octavo.gateway.fleet import Fleet
from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.last_words import see_out
from octavo.gateway.listener import listen
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.model_card import ModelLoader
from octavo.gateway.once import Once
from octavo.gateway.overload import MemoryReader, trim
from octavo.gateway.records import Records
from octavo.gateway.redis_store import RedisStore
from octavo.gateway.replica import Replica
from octavo.gateway.report import report
from octavo.gateway.static_discovery import StaticDiscovery
from octavo.gateway.status_server import StatusServer
from octavo.runtime import logs, telemetry
from octavo.runtime.env import Env, SystemEnv
from octavo.runtime.listen_address import listen_address
from octavo.runtime.loopback import check_exposure, require_loopback
from octavo.runtime.tls_folder import TlsFolder

log = structlog.get_logger("octavo.gateway")

KEEP_ALIVE_S = 75
"""Longer than the 60 s after which common proxies give an idle connection up."""

FLUSH_S = 2.0
"""How long the last records may take at the end."""


_LAST_ANSWER = (b"connection", b"close")


class _Server(uvicorn.Server):
    """uvicorn, but the first signal drains and the second ends the process at once.

    Before it drains it leaves: clients are served as before, but each answer is the last one on its
    connection, so that their next requests go to other gateways.
    """

    def __init__(
        self, config: uvicorn.Config, *, fleet: Fleet, once: Once, leave_s: float, drain_s: float
    ) -> None:
        super().__init__(config)
        self._fleet = fleet
        self._once = once
        self._leave_s = leave_s
        self._drain_s = drain_s
        self._signalled = False
        self._drains_at: float | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Takes both signals and, unlike uvicorn, does not raise them again at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Has the next tick begin to leave; the second time exits."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True

    async def on_tick(self, counter: int) -> bool:
        """Leaves, and drains when the time for that is over; runs ten times a second."""
        now = asyncio.get_running_loop().time()
        if self._signalled and self._drains_at is None:
            self._drains_at = now + self._leave_s
            self._fleet.leave()
            self.config.encoded_headers.append(_LAST_ANSWER)
            self.server_state.default_headers = [*self.server_state.default_headers, _LAST_ANSWER]
        if self._drains_at is not None and now >= self._drains_at:
            self._fleet.drain()
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running answers; those that outlast the drain end with an error."""
        ending = super().shutdown(sockets)
        if not await see_out(ending, self._once.abort, after_s=self._drain_s):
            log.warning("answers_cut_off", count=len(self.server_state.tasks))
            for task in self.server_state.tasks:
                task.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """A gateway, wired but not running."""

    server: _Server
    admission: Admission
    fleet: Fleet
    dispatcher: Dispatcher
    once: Once
    records: Records
    store: RedisStore | None
    status: StatusServer


def _wire(config: GatewayConfig) -> _Parts:
    env = SystemEnv()
    metrics = GatewayMetrics(REGISTRY)
    fleet = _fleet(config, metrics=metrics, env=env)
    store = RedisStore(config.redis) if config.redis else None
    records = Records(store, metrics=metrics, ttl_s=config.record_ttl_s)
    dispatcher = Dispatcher(
        fleet=fleet,
        records=records,
        metrics=metrics,
        env=env,
        tracer=telemetry.tracer(),
        resume=ResumePolicy(mode=config.resume, wait_s=config.resume_wait_s),
    )
    once = _once(config, dispatcher, store, metrics=metrics, env=env)
    admission = Admission(
        max_requests=config.max_requests,
        max_body_bytes_total=config.max_body_bytes_total,
        metrics=metrics,
        give_up=once.give_up,
    )
    app = build_app(
        config=config,
        admission=admission,
        fleet=fleet,
        dispatcher=dispatcher,
        once=once,
        records=records,
        env=env,
    )
    server = _Server(
        _settings(app),
        fleet=fleet,
        once=once,
        leave_s=config.leave_s,
        drain_s=config.drain_s,
    )
    parts = _Parts(
        server=server,
        admission=admission,
        fleet=fleet,
        dispatcher=dispatcher,
        once=once,
        records=records,
        store=store,
        status=_status(fleet, records, env),
    )
    _observe(parts, metrics)
    return parts


def _status(fleet: Fleet, records: Records, env: Env) -> StatusServer:
    gateway, began = env.new_id(), env.now()

    def state() -> dict[str, object]:
        return report(fleet, gateway=gateway, uptime_s=env.now() - began)

    return StatusServer(Status(fleet, records, endpoints=[]), state)


def _fleet(config: GatewayConfig, *, metrics: GatewayMetrics, env: Env) -> Fleet:
    in_cluster = config.discover == "kubernetes"
    discovery: Discovery
    if in_cluster:
        # Its client takes 15 MB, which a laptop has no use for.
        from octavo.gateway.kubernetes_discovery import KubernetesDiscovery

        cluster = KubernetesDiscovery(config.namespaces, env=env, bare_names=config.bare_names)
        metrics.observe("discovery_away", "1 while the API server fails.", lambda: cluster.is_away)
        metrics.observe(
            "namespaces_refused",
            "Namespaces that may not be listed.",
            lambda: cluster.num_refused,
        )
        discovery = cluster
    else:
        discovery = StaticDiscovery(config.engines, tls=bool(config.engine_tls_dir))
    loader = ModelLoader(env)
    tls = _tls_folder(config, metrics=metrics, env=env)

    def connect(endpoint: Endpoint, on_ready: Callable[[], None]) -> Replica:
        return Replica(
            endpoint,
            GrpcLink(endpoint.address, name=endpoint.tls_name, tls=tls),
            loader=loader,
            metrics=metrics,
            env=env,
            on_ready=on_ready,
            proves=in_cluster,
        )

    demand = Demand(hold_s=config.hold_s, max_held=config.max_held, metrics=metrics)
    return Fleet(discovery, connect, demand=demand, metrics=metrics)


def _tls_folder(config: GatewayConfig, *, metrics: GatewayMetrics, env: Env) -> TlsFolder | None:
    """Returns what engines are shown. A bad one costs those their connections, and no others."""
    if not config.engine_tls_dir:
        return None
    folder = config.engine_tls_dir
    tls = TlsFolder(folder, key="engine_tls_dir", origin="gateway", wall=env.wall)
    tls.observe(metrics.registry, "octavo_gateway_")
    tls.problem()  # logs it at the start
    return tls


def _settings(app: App) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )


def _observe(parts: _Parts, metrics: GatewayMetrics) -> None:
    """Adds the gauges that are read from the parts when they are scraped."""
    dispatcher, records, admission = parts.dispatcher, parts.records, parts.admission
    metrics.observe_engines(parts.fleet.states)
    demand = parts.fleet.demand
    metrics.observe("requests_held", "Requests without an engine.", lambda: demand.num_held)
    metrics.observe("requests_in_flight", "Requests that run.", lambda: dispatcher.num_open)
    metrics.observe("records_waiting", "Records the store lacks.", lambda: records.num_waiting)
    metrics.observe(
        "abandoned_generations", "Keyed ones without a reader.", lambda: parts.once.num_abandoned
    )
    metrics.observe(
        "overload_level",
        "1: the lowest class is refused, 2: all, 3: buffers go.",
        lambda: admission.level,
    )
    metrics.observe("body_bytes", "Bodies being received.", lambda: admission.body_bytes)
    if (store := parts.store) is not None:
        metrics.observe("store_away", "1 while the store fails.", lambda: store.breaker.is_open)


def _once(
    config: GatewayConfig,
    dispatcher: Dispatcher,
    store: RedisStore | None,
    *,
    metrics: GatewayMetrics,
    env: Env,
) -> Once:
    claims: Claims | None = None
    if store is not None:
        ttl_s = config.idempotency_ttl_s
        claims = Claims(store, metrics=metrics, owner=env.new_id(), ttl_s=ttl_s)
    return Once(
        dispatcher,
        claims,
        metrics=metrics,
        env=env,
        ttl_s=config.idempotency_ttl_s,
        grace_s=config.idempotency_grace_s,
    )


async def serve(
    config: GatewayConfig, listener: socket.socket, status: socket.socket | None = None
) -> None:
    """Runs a gateway until it is told to end.

    Args:
        config: its settings.
        listener: where clients connect.
        status: where those connect who watch it.
    """
    parts = _wire(config)
    # What exists now stays for good; later collections need not look at it again.
    gc.collect()
    gc.freeze()
    host, port = listener.getsockname()[:2]
    engines = list(config.engines) if config.discover == "static" else config.discover
    name = f"[{host}]" if ":" in host else host
    log.info("gateway_listening", url=f"http://{name}:{port}", engines=engines)
    tasks = [
        asyncio.create_task(parts.server.serve(sockets=[listener])),
        asyncio.create_task(parts.fleet.run()),
        asyncio.create_task(parts.records.run()),
        asyncio.create_task(parts.admission.run(MemoryReader(config.memory_limit_bytes), trim)),
    ]
    if status is not None:
        tasks.append(asyncio.create_task(parts.status.serve(sockets=[status])))
    try:
        done, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        # Only the server ends by itself: when another one does, this raises, and the process ends.
        for task in done:
            task.result()
    finally:
        parts.once.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.once.close(FLUSH_S)
        await parts.records.flush(FLUSH_S)
        if parts.store is not None:
            await parts.store.close()
        log.info("gateway_stopped")


def run(config: GatewayConfig, environ: Mapping[str, str]) -> None:
    """Serves until a signal ends it; raises OctavoError when it cannot start."""
    logs.configure(
        json=config.log_json, level=config.log_level, service="octavo-gateway", stream=sys.stderr
    )
    if config.discover == "static" and not config.engine_tls_dir:
        for address in config.engines:
            require_loopback(address, key="engines", origin="gateway", unless="--engine-tls-dir")
    if not config.no_auth:
        check_exposure(config.host, origin="gateway")
    end_telemetry = telemetry.configure("octavo-gateway", environ)
    listener = listen(config.host, config.port)
    status: socket.socket | None = None
    if config.status_listen:
        status = listen(
            *listen_address(config.status_listen, key="status_listen", origin="gateway")
        )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, listener, status))
    end_telemetry()
