"""What names mean when services have them. Without services: test_fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Cluster, Gateway, clustered, prompt, until

from octavo.gateway import fleet as fleet_module
from octavo.gateway.discovery import Endpoint, Service
from octavo.gateway.dispatch import Call
from octavo.v1 import engine_pb2
from octavo.v1.errors import MODEL_LOADING, MODEL_NOT_FOUND, NO_ENGINE, OctavoError

OLD = Service(id="a/one", names=("tiny", "small"), created_unix_s=1)
NEW = Service(id="b/two", names=("tiny",), created_unix_s=2)


def at(engine: FakeEngine, service: Service) -> Endpoint:
    return Endpoint(address=engine.address, pod=f"{service.id}-0", service=service.id)


def run(scenario: Callable[[Gateway, Cluster], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with clustered() as (gw, cluster):
            await scenario(gw, cluster)

    asyncio.run(within())


def refusal(gw: Gateway, name: str) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        gw.fleet.model(name)
    return caught.value


def asleep(gw: Gateway) -> list[str]:
    return [each.name for each in gw.fleet.catalogue.asleep()]


async def ask(gw: Gateway, name: str) -> None:
    generation = await gw.dispatcher.open(Call(model=gw.fleet.model(name), request=prompt("abc")))
    async for _ in generation:
        pass


def test_equal_names_of_two_namespaces_are_two_services() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        first, second = await cluster.start(FakeEngine()), await cluster.start(FakeEngine())
        cluster.tell(at(first, OLD), at(second, NEW), services=(NEW, OLD))
        await until(lambda: len([r for r in gw.replicas if r.ready]) == 2)
        assert [m.name for m in gw.fleet.served()] == ["tiny", "small", "b/tiny"]
        for name in ("tiny", "a/tiny", "small", "a/one"):
            assert gw.fleet.model(name).service == "a/one"
            assert gw.fleet.model(name).name == name
            await ask(gw, name)
        assert (len(first.requests), len(second.requests)) == (4, 0)
        await ask(gw, "b/tiny")
        await ask(gw, "b/two")
        assert (len(first.requests), len(second.requests)) == (4, 2)

    run(scenario)


def test_engines_take_nothing_of_another_service_with_the_same_model() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, NEW), services=(OLD, NEW))
        await until(lambda: len([r for r in gw.replicas if r.ready]) == 1)
        assert refusal(gw, "tiny").kind is NO_ENGINE
        assert asleep(gw) == ["tiny", "small"]
        assert gw.fleet.holds("a/one")
        assert not gw.fleet.holds("b/two")

    run(scenario)


def test_while_an_engine_loads_its_stage_is_told() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine(stage=engine_pb2.STAGE_LOADING))
        cluster.tell(at(engine, OLD), services=(OLD,))
        await until(lambda: [r.stage for r in gw.replicas] == [engine_pb2.STAGE_LOADING])
        engine.set_stage(engine_pb2.STAGE_LOADING, "weights", 7000)
        await until(lambda: gw.replicas[0].detail == "weights")
        error = refusal(gw, "small")
        assert error.kind is MODEL_LOADING
        assert (error.message, error.retry_after_ms) == (
            "the model is not ready yet: loading: weights",
            7000,
        )
        found = gw.fleet.catalogue.asleep_as("a/one")
        assert found is not None
        assert found.stage == "loading: weights"
        engine.set_stage(engine_pb2.STAGE_READY)
        await until(lambda: not asleep(gw))
        assert gw.fleet.catalogue.asleep_as("a/one") is None

    run(scenario)


def test_engines_that_do_not_trust_the_gateway_are_not_waited_for_and_it_is_said_why() -> None:
    """The gateway has no certificate, and speaks no plaintext to whoever has one."""

    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(replace(at(engine, OLD), tls_name="one-engine.a.svc"), services=(OLD, NEW))
        await until(lambda: bool(gw.replicas and gw.replicas[0].distrust))
        why = "the engine takes mTLS only, and the gateway has no certificate"
        assert gw.replicas[0].problem == why
        assert not gw.fleet.holds("a/one")
        error = refusal(gw, "small")
        assert error.kind is NO_ENGINE
        assert error.message == f"no engine for 'small' is reachable: {why}"
        assert error.retry_after_ms > 0
        found = gw.fleet.catalogue.asleep_as("a/one")
        assert found is not None
        assert found.stage == why
        assert engine.num_state_streams == 0
        cluster.tell(at(engine, OLD), replace(at(engine, OLD), uid="u"), services=(OLD, NEW))
        await until(lambda: bool(gw.fleet.served()))
        assert [r.distrust for r in gw.replicas if r.ready] == [""]

    run(scenario)


def test_a_request_that_is_held_is_let_go_when_no_engine_is_trusted() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        cluster.tell(services=(OLD,))
        await until(lambda: gw.fleet.holds("a/one"))
        still = partial(gw.fleet.holds, "a/one")
        held = asyncio.create_task(gw.fleet.demand.hold("a/one", still))
        await asyncio.sleep(0)
        endpoint = Endpoint(address="127.0.0.1:9", service="a/one", tls_name="one-engine.a.svc")
        cluster.tell(endpoint, services=(OLD,))
        await asyncio.wait_for(held, 4)

    run(scenario)


def test_an_engine_that_is_not_trusted_and_leaves_is_no_reason_to_refuse() -> None:
    """A certificate was mended: the engine that has the former one goes, the next one may come."""

    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        old = replace(at(engine, OLD), tls_name="one-engine.a.svc")
        cluster.tell(old, services=(OLD,))
        await until(lambda: bool(gw.replicas and gw.replicas[0].distrust))
        assert not gw.fleet.holds("a/one")
        cluster.tell(replace(old, terminating=True), services=(OLD,))
        await until(lambda: gw.fleet.holds("a/one"))
        assert gw.replicas[0].distrust, "it is there still"
        assert refusal(gw, "tiny").message == "no engine for 'tiny' is reachable"
        found = gw.fleet.catalogue.asleep_as("a/one")
        assert found is not None
        assert found.stage == "there is no engine"
        refused = replace(old, uid="u")
        cluster.tell(replace(old, terminating=True), refused, services=(OLD,))
        await until(lambda: not gw.fleet.holds("a/one"))
        assert refusal(gw, "tiny").message.endswith(gw.replicas[-1].distrust)

    run(scenario)


def test_no_name_means_the_only_service() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, OLD), services=(OLD,))
        await until(lambda: bool(gw.fleet.served()))
        assert gw.fleet.model("").name == "tiny"
        assert gw.fleet.catalogue.service_of("") == "a/one"
        cluster.tell(at(engine, OLD), services=(OLD, NEW))
        await until(lambda: gw.fleet.catalogue.service_of("") == "")
        assert refusal(gw, "").kind is MODEL_NOT_FOUND

    run(scenario)


def test_an_unknown_name_gets_the_nearest_and_not_all_of_many() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        many = [Service(id=f"a/s{i}", names=(f"model-{i}",), created_unix_s=i) for i in range(50)]
        cluster.tell(services=many)
        await until(lambda: gw.fleet.readiness().ready)
        error = refusal(gw, "model-44x")
        assert error.kind is MODEL_NOT_FOUND
        assert "did you mean model-44?" in error.message
        assert "model-19, …" in error.message
        assert len(error.message) < 400

    run(scenario)


def test_a_service_that_is_gone_takes_its_names_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "FORGET_S", 0.05)

    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine, OLD), services=(OLD,))
        await until(lambda: bool(gw.fleet.served()))
        await ask(gw, "tiny")
        await ask(gw, "small")
        assert gw.metric("prompt_tokens_total", model="small") == 3
        cluster.tell(at(engine, OLD), services=(NEW,))
        await until(lambda: gw.fleet.catalogue.service_of("a/one") == "")
        assert refusal(gw, "small").kind is MODEL_NOT_FOUND
        assert refusal(gw, "tiny").kind is NO_ENGINE
        await until(lambda: gw.metric("prompt_tokens_total", model="small") == 0)
        assert gw.metric("prompt_tokens_total", model="tiny") == 3, "another service has it"

    run(scenario)


def test_a_gateway_is_ready_once_it_knows_that_there_is_nothing() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        readiness = gw.fleet.readiness()
        assert (readiness.ready, readiness.stage) == (False, "looking for engines")
        cluster.tell()
        await until(lambda: gw.fleet.readiness().ready)
        gw.fleet.drain()
        assert not gw.fleet.readiness().ready

    run(scenario)
