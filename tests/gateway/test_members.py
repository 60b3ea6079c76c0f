"""Engines that come and go, behind real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.asking import always, expected, read_into, seeded
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Cluster, Gateway, clustered, prompt, until
from tests.gateway.script import Script

from octavo.gateway import members
from octavo.gateway.discovery import Endpoint, Service
from octavo.v1.errors import NO_ENGINE, OctavoError

SERVICES = (Service(id="a/s", names=("tiny",)),)
SLOW = always(Script(delay_s=0.02, tokens=40))


def at(engine: FakeEngine, uid: str, *, terminating: bool = False) -> Endpoint:
    return Endpoint(
        address=engine.address,
        uid=uid,
        pod=f"a/pod-{uid}",
        service="a/s",
        terminating=terminating,
    )


def run(scenario: Callable[[Gateway, Cluster], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with clustered() as (gw, cluster):
            await scenario(gw, cluster)

    asyncio.run(within())


def ready(gw: Gateway) -> list[str]:
    return [replica.name for replica in gw.replicas if replica.ready]


def test_engines_are_found_and_found_again_under_their_pods_names() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        first, second = await cluster.start(FakeEngine()), await cluster.start(FakeEngine())
        cluster.tell(at(first, "1"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-1"])
        session = gw.replicas[0]._session
        cluster.tell(at(first, "1"), at(second, "2"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-1", "a/pod-2"])
        assert gw.replicas[0]._session is session
        generation = await gw.open(prompt("abc"))
        assert generation.route.engine in ("a/pod-1", "a/pod-2")
        await generation.aclose()

    run(scenario)


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "terminating"])
def test_an_engine_that_leaves_keeps_its_streams_and_gets_nothing_new(gone: bool) -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        first = await cluster.start(FakeEngine(script=SLOW))
        second = await cluster.start(FakeEngine())
        cluster.tell(at(first, "1"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-1"])
        parts: list[str] = []
        reading = asyncio.create_task(read_into(await gw.open(seeded("abc")), parts))
        await until(lambda: len(parts) > 2)
        left = () if gone else (at(first, "1", terminating=True),)
        cluster.tell(*left, at(second, "2"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-2"])
        for _ in range(3):
            assert await gw.text(prompt("abc"))
        assert len(first.requests) == 1
        await reading
        assert "".join(parts) == expected("abc", 5, 40)
        cluster.tell(at(second, "2"), services=SERVICES)
        await until(lambda: [r.name for r in gw.replicas] == ["a/pod-2"])
        await until(lambda: first._sessions == [])
        gw.check_idle()

    run(scenario)


def test_one_that_comes_back_before_its_last_stream_has_ended_stays() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine(script=SLOW))
        cluster.tell(at(engine, "1"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-1"])
        [replica] = gw.replicas
        parts: list[str] = []
        reading = asyncio.create_task(read_into(await gw.open(seeded("abc")), parts))
        cluster.tell(services=SERVICES)
        await until(lambda: replica.leaving)
        with pytest.raises(OctavoError) as caught:
            gw.fleet.model("tiny")
        assert caught.value.kind is NO_ENGINE
        cluster.tell(at(engine, "1"), services=SERVICES)
        await until(lambda: replica.ready)
        await reading
        await asyncio.sleep(0.05)
        assert gw.replicas == [replica]
        assert await gw.text(prompt("abc"))

    run(scenario)


def test_another_pod_at_the_same_address_is_another_engine() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, "1"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-1"])
        [old] = gw.replicas
        await gw.text(prompt("word " * 40))
        await until(lambda: len(old.index) == 12)
        await engine.restart()
        cluster.tell(at(engine, "2"), services=SERVICES)
        await until(lambda: ready(gw) == ["a/pod-2"])
        [new] = gw.replicas
        assert new is not old
        assert len(new.index) == 0
        assert new._link is not old._link

    run(scenario)


def test_one_that_is_terminating_when_it_is_found_is_left_alone() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, "1", terminating=True), services=SERVICES)
        await until(lambda: gw.fleet.readiness().ready)
        assert gw.replicas == []

    run(scenario)


def test_nothing_is_left_of_engines_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "FORGET_S", 0.05)

    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        num_tasks = 0
        for life in range(5):
            cluster.tell(at(engine, str(life)), services=SERVICES)
            await until(lambda: len(ready(gw)) == 1)
            await gw.text(prompt("abc"))
            cluster.tell(services=SERVICES)
            await until(lambda: gw.replicas == [])
            await until(lambda: engine._sessions == [])
            await asyncio.sleep(0.1)
            num_tasks = num_tasks or len(asyncio.all_tasks())
        assert len(asyncio.all_tasks()) <= num_tasks
        assert gw.fleet.of("a/s") == ()
        assert gw.metric("routes_total", engine="a/pod-4") == 0
        labels = [m.samples for m in gw.metrics.registry.collect() if m.name.endswith("routes")]
        assert labels == [[]]

    run(scenario)


def test_what_is_forgotten_is_not_what_has_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "FORGET_S", 0.3)

    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, "1"), services=SERVICES)
        await until(lambda: len(ready(gw)) == 1)
        await gw.text(prompt("abc"))
        cluster.tell(services=SERVICES)
        await until(lambda: gw.replicas == [])
        cluster.tell(at(engine, "1"), services=SERVICES)
        await until(lambda: len(ready(gw)) == 1)
        await asyncio.sleep(0.5)
        assert gw.metric("routes_total", engine="a/pod-1") == 1

    run(scenario)
