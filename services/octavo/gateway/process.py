"""One gateway process: wiring, server, signals.

Listens at once; engines are connected behind it. SIGTERM or SIGINT ends it gracefully: no new
connections, unready, running answers finish within drain_s, then they end with an error. A second
signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import math
import os
import signal
import socket
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import FrameType

import structlog
import uvicorn
import uvloop
from prometheus_client import REGISTRY

from octavo.gateway.admission import Admission
from octavo.gateway.app import App, build_app
from octavo.gateway.claims import Claims
from octavo.gateway.config import GatewayConfig
from octavo.gateway.connection import Connection
from octavo.gateway.dispatch import Dispatcher, ResumePolicy
from octavo.gateway.fleet import Fleet
from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.model_card import ModelLoader
from octavo.gateway.once import Once
from octavo.gateway.overload import MemoryReader, trim
from octavo.gateway.records import Records
from octavo.gateway.redis_store import RedisStore
from octavo.gateway.replica import Replica
from octavo.runtime import logs, telemetry
from octavo.runtime.env import Env, SystemEnv
from octavo.runtime.loopback import require_loopback
from octavo.v1.errors import PORT_IN_USE, OctavoError

log = structlog.get_logger("octavo.gateway")

KEEP_ALIVE_S = 75
"""Longer than the 60 s after which common proxies give an idle connection up."""

LAST_WORDS_S = 1.0
"""How long answers that outlasted the drain may take to send their error."""

PEER_TIMEOUT_S = 30.0
"""How long a client may acknowledge nothing, or keep its window shut, before it is gone."""

KEEP_ALIVE_PROBE_S = 10
"""Silence after which the kernel asks whether the peer is still there, and between questions."""

SOCKET_BYTES = 256 * 1024
"""Kernel buffer of a connection each way: 2 MB/s at 100 ms. Left to the kernel it grows to several
megabytes for a client that does not read, and the process's own memory does not show that."""

FLUSH_S = 2.0
"""How long the last records may take at the end."""


class _Server(uvicorn.Server):
    """uvicorn, but the first signal drains and the second ends the process at once."""

    def __init__(
        self, config: uvicorn.Config, *, fleet: Fleet, dispatcher: Dispatcher, drain_s: float
    ) -> None:
        super().__init__(config)
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._drain_s = drain_s

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Takes both signals and, unlike uvicorn, does not raise them again at the end."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begins the drain; the second time exits."""
        if self._fleet.draining:
            os._exit(128 + sig)
        self._fleet.drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Waits for running answers; those that outlast the drain end with an error."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._drain_s, self._dispatcher.abort)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


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


def _wire(config: GatewayConfig) -> _Parts:
    env = SystemEnv()
    metrics = GatewayMetrics(REGISTRY)
    loader = ModelLoader(env)
    fleet = Fleet(
        [
            Replica(address, GrpcLink(address), loader=loader, metrics=metrics, env=env)
            for address in config.engines
        ]
    )
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
        _settings(app, config), fleet=fleet, dispatcher=dispatcher, drain_s=config.drain_s
    )
    parts = _Parts(
        server=server,
        admission=admission,
        fleet=fleet,
        dispatcher=dispatcher,
        once=once,
        records=records,
        store=store,
    )
    _observe(parts, metrics)
    return parts


def _settings(app: App, config: GatewayConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(config.drain_s + LAST_WORDS_S),
    )


def _observe(parts: _Parts, metrics: GatewayMetrics) -> None:
    """Adds the gauges that are read from the parts when they are scraped."""
    dispatcher, records, admission = parts.dispatcher, parts.records, parts.admission
    metrics.observe_engines(parts.fleet.states)
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


async def serve(config: GatewayConfig, listener: socket.socket) -> None:
    """Runs a gateway until it is told to end."""
    parts = _wire(config)
    # What exists now stays for good; later collections need not look at it again.
    gc.collect()
    gc.freeze()
    host, port = listener.getsockname()[:2]
    log.info("gateway_listening", url=f"http://{host}:{port}", engines=list(config.engines))
    tasks = [
        asyncio.create_task(parts.server.serve(sockets=[listener])),
        asyncio.create_task(parts.fleet.run()),
        asyncio.create_task(parts.records.run()),
        asyncio.create_task(parts.admission.run(MemoryReader(config.memory_limit_bytes), trim)),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        # Only the server ends by itself: when another one does, this raises, and the process ends.
        for task in done:
            task.result()
    finally:
        parts.dispatcher.abort()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await parts.once.close(FLUSH_S)
        await parts.records.flush(FLUSH_S)
        if parts.store is not None:
            await parts.store.close()
        log.info("gateway_stopped")


def listen(host: str, port: int, *, peer_timeout_s: float = PEER_TIMEOUT_S) -> socket.socket:
    """Opens the listening socket, whose connections inherit its options; raises PORT_IN_USE."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OctavoError(PORT_IN_USE, port=port, host=host) from error
    for option, value in (
        (socket.SO_KEEPALIVE, 1),
        (socket.SO_SNDBUF, SOCKET_BYTES),
        (socket.SO_RCVBUF, SOCKET_BYTES),
    ):
        listener.setsockopt(socket.SOL_SOCKET, option, value)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEP_ALIVE_PROBE_S),
            (socket.TCP_KEEPINTVL, KEEP_ALIVE_PROBE_S),
            (socket.TCP_USER_TIMEOUT, int(peer_timeout_s * 1000)),
        ):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    return listener


def run(config: GatewayConfig, environ: Mapping[str, str]) -> None:
    """Serves until a signal ends it; raises OctavoError when it cannot start."""
    logs.configure(
        json=config.log_json, level=config.log_level, service="octavo-gateway", stream=sys.stderr
    )
    for address in config.engines:
        require_loopback(address, key="engines", origin="gateway")
    end_telemetry = telemetry.configure("octavo-gateway", environ)
    listener = listen(config.host, config.port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(config, listener))
    end_telemetry()
