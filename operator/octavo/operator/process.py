"""The operator as a process: its parts put together, its signals, its end.

The order of the start: the status server, the lease, a look at all that exists, then the loops and
the watches. Everything is observed anew after a start, so an end needs no care at any moment.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

from octavo.operator.cluster import Connection
from octavo.operator.config import OperatorConfig
from octavo.operator.controller import Controller
from octavo.operator.gateway_reports import GatewayReports
from octavo.operator.health import Health, judge
from octavo.operator.kinds import OPTIONAL_KINDS
from octavo.operator.lease import LeaseHolder, LeaseLostError
from octavo.operator.lightkube_cluster import LightkubeCluster, configuration, connection
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.mirror import WATCHED_KINDS
from octavo.operator.watches import watch
from octavo.runtime import logs
from octavo.runtime.env import Env, SystemEnv
from octavo.runtime.status_server import StatusServer

log = structlog.get_logger(__name__)

WATCH_AGAIN_S = 5.0
"""After the watching failed as a whole, before it is begun again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a process is made of."""

    config: OperatorConfig
    cluster: LightkubeCluster
    reports: GatewayReports | None
    lease: LeaseHolder | None
    controller: Controller
    metrics: OperatorMetrics
    stop: asyncio.Event


async def serve(config: OperatorConfig) -> None:
    """Operates until a signal ends it, or another operator; raises OctavoError before that."""
    config.installation()
    found = configuration()
    parts = _wire(config, LightkubeCluster(found, timeout_s=config.request_timeout_s), SystemEnv())
    _take_signals(parts.stop)
    status = StatusServer(
        parts.metrics.registry, lambda: _health(parts), key="status_listen", origin="operator"
    )
    if config.status_listen:
        port = await status.start(config.status_listen)
        log.info("operator_listening", port=port)
    acting = asyncio.create_task(_act(parts, lambda: connection(found)))
    stopping = asyncio.create_task(parts.stop.wait())
    try:
        await asyncio.wait([acting, stopping], return_when="FIRST_COMPLETED")
        if acting.done():
            # By itself it ends when the lease is lost, or by a fault, which is raised here.
            acting.result()
    finally:
        acting.cancel()
        stopping.cancel()
        await asyncio.gather(acting, stopping, return_exceptions=True)
        if parts.lease is not None:
            await parts.lease.release()
        if parts.reports is not None:
            await parts.reports.close()
        status.stop()
        await parts.cluster.close()
        log.info("operator_stopped")


def _wire(config: OperatorConfig, cluster: LightkubeCluster, env: Env) -> _Parts:
    now = asyncio.get_running_loop().time
    gateways, lease_key = config.gateway_key(), config.lease_key()
    reports = GatewayReports(cluster, gateways, now=now) if gateways is not None else None
    lease = None
    if lease_key is not None:
        identity = f"{socket.gethostname()}_{env.new_id()}"
        lease = LeaseHolder(cluster, lease_key, identity=identity, now=now, env=env)
    metrics = OperatorMetrics(CollectorRegistry())
    controller = Controller(
        cluster,
        config,
        reports=reports,
        may_act=lease.is_held if lease is not None else lambda: True,
        metrics=metrics,
        env=env,
    )
    parts = _Parts(
        config=config,
        cluster=cluster,
        reports=reports,
        lease=lease,
        controller=controller,
        metrics=metrics,
        stop=asyncio.Event(),
    )
    _observe(parts)
    return parts


def _observe(parts: _Parts) -> None:
    """Adds the gauges that are read from the parts when they are scraped."""
    metrics, controller, reports = parts.metrics, parts.controller, parts.reports
    metrics.observe("waiting", "Services that are to be looked at.", lambda: len(controller.queue))
    metrics.observe("overdue_seconds", "Longest wait for a worker.", controller.queue.overdue_s)
    metrics.observe_by(
        "service_ready",
        "1 while the InferenceService is Ready, 0 while it should be and is not.",
        ("namespace", "name"),
        lambda: {(key.namespace, key.name): ready for key, ready in controller.mirror.readiness()},
    )
    metrics.observe_by(
        "service_routable",
        "1 while a gateway reaches an engine of the InferenceService, 0 while none does and some "
        "have loaded.",
        ("namespace", "name"),
        lambda: {(key.namespace, key.name): reach for key, reach in controller.mirror.reach()},
    )
    if parts.config.namespaces:
        metrics.observe_by(
            "namespace_open",
            "1 while the namespace may be listed.",
            ("namespace",),
            controller.scopes.states,
        )
    if reports is not None:
        metrics.observe_by(
            "gateways",
            "Ready gateways by whether they report.",
            ("reports",),
            lambda: {("yes",): reports.count(fresh=True), ("no",): reports.count(fresh=False)},
        )
    if (lease := parts.lease) is not None:
        metrics.observe("lease_held", "1 while this operator acts.", lease.is_held)


async def _act(parts: _Parts, credentials: Callable[[], Connection]) -> None:
    """Does all the work, until another operator does it."""
    try:
        async with asyncio.TaskGroup() as tasks:
            if parts.lease is not None:
                await parts.lease.acquire()
                tasks.create_task(parts.lease.keep())
            await parts.controller.start()
            for _ in range(parts.config.workers):
                tasks.create_task(parts.controller.run_worker())
            tasks.create_task(parts.controller.run_resync())
            tasks.create_task(parts.controller.run_polls())
            await _watch(parts, credentials)
    except* LeaseLostError as lost:
        log.error("lease_lost", holder=str(lost.exceptions[0]))


async def _watch(parts: _Parts, credentials: Callable[[], Connection]) -> None:
    """Watches for ever; begins again, with a look at all that exists, where kopf gives up.

    So it does when there are other namespaces to watch: in one that may not be, kopf gives up all.
    """
    scopes = parts.controller.scopes
    while True:
        scopes.changed.clear()
        try:
            await watch(
                [kind for kind in WATCHED_KINDS if kind not in OPTIONAL_KINDS],
                scopes.open,
                notice=parts.controller.notice,
                connection=credentials,
                request_timeout_s=parts.config.request_timeout_s,
                started=lambda: _take_signals(parts.stop),
                stop=scopes.changed,
            )
        except Exception:
            # Such as a definition that was deleted, or an error within a stream.
            log.exception("watching_failed")
        if not scopes.changed.is_set():
            parts.metrics.watch_restarts.inc()
            await asyncio.sleep(WATCH_AGAIN_S)
        await parts.controller.start()


def _health(parts: _Parts) -> Health:
    controller = parts.controller
    return judge(
        beats=controller.beats,
        synced_at=controller.synced_at,
        overdue_s=controller.queue.overdue_s(),
        resync_s=parts.config.resync_s,
        now=asyncio.get_running_loop().time(),
    )


def _take_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)


def run(config: OperatorConfig) -> None:
    """Operates until a signal ends it; raises OctavoError when it cannot start."""
    logs.configure(
        json=config.log_json, level=config.log_level, service="octavo-operator", stream=sys.stderr
    )
    # What it tells of each object is ours to tell, or nobody's.
    logging.getLogger("kopf").setLevel(logging.WARNING)
    asyncio.run(serve(config))
