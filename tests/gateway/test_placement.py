"""Attempts that wait for an engine of a service. Where they go otherwise: test_generation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.asking import by_attempt, expected, read_into, seeded
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Cluster, Gateway, clustered, prompt, until
from tests.gateway.script import Script

from octavo.gateway.discovery import Endpoint, Service
from octavo.v1 import engine_pb2
from octavo.v1.errors import DRAINING, NO_ENGINE, OctavoError

SERVICE = Service(id="a/s", names=("tiny",))
FIXED = Service(id="a/s", names=("tiny",), may_come=False)


def at(engine: FakeEngine, uid: str = "1") -> Endpoint:
    return Endpoint(address=engine.address, uid=uid, pod=f"a/pod-{uid}", service="a/s")


def run(scenario: Callable[[Gateway, Cluster], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def within() -> None:
        async with clustered(**settings) as (gw, cluster):
            await scenario(gw, cluster)
            gw.check_idle()

    asyncio.run(within())


async def found(gw: Gateway, cluster: Cluster, engine: FakeEngine, service: Service) -> None:
    cluster.tell(at(engine), services=(service,))
    await until(lambda: [r.ready for r in gw.replicas] == [True])


def waiting(gw: Gateway) -> int:
    return gw.fleet.demand.figures("a/s").held


def test_who_comes_to_the_last_engine_as_it_drains_waits_for_the_next() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        leaving = await cluster.start(FakeEngine())
        await found(gw, cluster, leaving, SERVICE)

        def drains(_: engine_pb2.GenerateRequest) -> Script:
            leaving.set_stage(engine_pb2.STAGE_DRAINING)
            return Script(refuse=OctavoError(DRAINING))

        leaving.script = drains
        asking = asyncio.create_task(gw.text(seeded("abc")))
        await until(lambda: waiting(gw) == 1)
        coming = await cluster.start(FakeEngine())
        cluster.tell(at(coming, "2"), services=(SERVICE,))
        assert await asking == expected("abc", 5, 8)
        assert waiting(gw) == 0

    run(scenario)


def test_an_answer_handed_over_by_the_last_engine_goes_on_at_the_next() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        leaving = await cluster.start(
            FakeEngine(script=by_attempt(Script(hand_over_after=4, delay_s=0.02, tokens=12)))
        )
        await found(gw, cluster, leaving, SERVICE)
        parts: list[str] = []
        generation = await gw.open(seeded("abc", max_tokens=12))
        reading = asyncio.create_task(read_into(generation, parts))
        leaving.set_stage(engine_pb2.STAGE_DRAINING)
        await until(lambda: waiting(gw) == 1)
        cluster.tell(services=(SERVICE,))
        await until(lambda: gw.replicas == [])
        coming = await cluster.start(FakeEngine())
        cluster.tell(at(coming, "2"), services=(SERVICE,))
        await reading
        assert "".join(parts) == expected("abc", 5, 12)

    run(scenario)


@pytest.mark.parametrize(
    ("service", "hold_s"), [(FIXED, 30.0), (SERVICE, 0.1)], ids=["nobody starts one", "too long"]
)
def test_without_hope_it_is_told_that_there_is_none(service: Service, hold_s: float) -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        await found(gw, cluster, engine, service)
        model = gw.fleet.model("tiny")
        await engine.kill()
        await until(lambda: not gw.replicas[0].ready)
        call = prompt("abc")
        with pytest.raises(OctavoError) as caught:
            await asyncio.wait_for(_open(gw, model, call), 5)
        assert caught.value.kind is NO_ENGINE

    run(scenario, hold_s=hold_s)


async def _open(gw: Gateway, model: Any, request: engine_pb2.GenerateRequest) -> None:
    from octavo.gateway.dispatch import Call

    await gw.dispatcher.open(Call(model=model, request=request))


def test_a_wait_ends_with_its_client_and_with_its_time() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        await found(gw, cluster, engine, SERVICE)
        model = gw.fleet.model("tiny")
        await engine.kill()
        await until(lambda: not gw.replicas[0].ready)
        opening = asyncio.create_task(_open(gw, model, prompt("abc")))
        await until(lambda: waiting(gw) == 1)
        opening.cancel()
        await until(lambda: waiting(gw) == 0)
        with pytest.raises(OctavoError, match="waited longer than its 100 ms"):
            await _open(gw, model, prompt("abc", max_queue_ms=100))
        gw.dispatcher.abort()

    run(scenario)
