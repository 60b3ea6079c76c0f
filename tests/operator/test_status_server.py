from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry

from octavo.operator.health import Health
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.status_server import StatusServer
from octavo.v1.errors import OctavoError


def asked(health: Health, path: str) -> httpx.Response:
    """Returns what a server that is so answers."""

    async def ask() -> httpx.Response:
        metrics = OperatorMetrics(CollectorRegistry())
        metrics.reconciles.labels("done").inc()
        server = StatusServer(metrics.registry, lambda: health)
        port = await server.start("127.0.0.1:0")
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                return await client.get(f"http://127.0.0.1:{port}{path}")
        finally:
            await server.stop()

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("ready", "stuck", "healthz", "readyz"),
    [(True, (), 200, 200), (False, (), 200, 503), (True, ("work",), 503, 503)],
    ids=["well", "starting", "stuck"],
)
def test_probes_follow_the_health(
    ready: bool, stuck: tuple[str, ...], healthz: int, readyz: int
) -> None:
    health = Health(ready=ready, ages={"work": 1.25}, stuck=stuck)
    answer = asked(health, "/healthz")
    assert answer.status_code == healthz
    assert answer.json() == {"ready": ready, "stuck": list(stuck), "ages_s": {"work": 1.2}}
    assert asked(health, "/readyz").status_code == readyz


def test_metrics_are_prometheus_text() -> None:
    answer = asked(Health(ready=True, ages={}, stuck=()), "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'octavo_operator_reconciles_total{result="done"} 1.0' in answer.text


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:http"])
def test_an_address_without_port_stops_the_start(listen: str) -> None:
    server = StatusServer(CollectorRegistry(), lambda: Health(ready=True, ages={}, stuck=()))
    with pytest.raises(OctavoError, match="status_listen"):
        asyncio.run(server.start(listen))


def test_a_taken_port_stops_the_start() -> None:
    async def case() -> None:
        health = Health(ready=True, ages={}, stuck=())
        first, second = (StatusServer(CollectorRegistry(), lambda: health) for _ in range(2))
        port = await first.start("127.0.0.1:0")
        try:
            with pytest.raises(OctavoError, match=str(port)):
                await second.start(f"127.0.0.1:{port}")
        finally:
            await first.stop()

    asyncio.run(case())
