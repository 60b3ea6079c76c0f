from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.asking import always
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Cluster, Gateway, clustered, prompt, until
from tests.gateway.script import Script

from octavo.gateway.discovery import Endpoint, Service
from octavo.gateway.report import report
from octavo.v1 import engine_pb2
from octavo.v1.errors import INTERNAL, OctavoError

SERVICE = Service(id="a/s", names=("tiny",))


def at(engine: FakeEngine | str, *, terminating: bool = False) -> Endpoint:
    address = engine if isinstance(engine, str) else engine.address
    return Endpoint(
        address=address, uid="u1", pod="a/s-engine-x", service="a/s", terminating=terminating
    )


def run(scenario: Callable[[Gateway, Cluster], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with clustered(proves=True) as (gw, cluster):
            await scenario(gw, cluster)

    asyncio.run(within())


def engine_of(gw: Gateway) -> dict[str, Any]:
    engines: Any = report(gw.fleet, gateway="g", uptime_s=1.5)["engines"]
    [one] = engines or [{}]
    return dict(one)


def service_of(gw: Gateway) -> dict[str, Any]:
    services: Any = report(gw.fleet, gateway="g", uptime_s=1.5)["services"]
    [one] = services or [{"queue_s": 0.0}]
    return dict(one)


async def state(gw: Gateway, word: str) -> dict[str, Any]:
    await until(lambda: engine_of(gw).get("state") == word, 8.0)
    return engine_of(gw)


def test_an_engine_s_life_as_it_is_told() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine(stage=engine_pb2.STAGE_LOADING))
        engine.detail = "weights"
        cluster.tell(at(engine), services=(SERVICE,))
        told = await state(gw, "loading")
        assert (told["detail"], told["routable"]) == ("weights", False)
        engine.set_stage(engine_pb2.STAGE_WARMING)
        await state(gw, "warming")
        engine.set_stage(engine_pb2.STAGE_READY)
        assert await state(gw, "ready") == {
            "address": engine.address,
            "uid": "u1",
            "pod": "s-engine-x",
            "service": "a/s",
            "state": "ready",
            "routable": True,
            "in_flight": 0,
            "detail": "",
            "numerics_id": "fake",
            "exact": True,
        }
        [probe] = engine.requests
        assert probe.max_tokens == 1
        await engine.kill()
        assert (await state(gw, "lost"))["routable"] is False
        await engine.restart()
        await state(gw, "ready")
        assert len(engine.requests) == 2, "another life, another probe"
        engine.set_stage(engine_pb2.STAGE_FAILED)
        await state(gw, "failed")
        engine.set_stage(engine_pb2.STAGE_READY)
        await state(gw, "ready")
        cluster.tell(at(engine, terminating=True), services=(SERVICE,))
        assert (await state(gw, "draining"))["routable"] is False

    run(scenario)


def test_an_engine_that_nobody_has_reached_is_being_connected() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        cluster.tell(at("127.0.0.1:9"), services=(SERVICE,))
        told = await state(gw, "connecting")
        assert told["routable"] is False

    run(scenario)


def test_an_engine_whose_probe_fails_is_never_routable_and_says_why() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        broken = always(Script(fail_after=(0, OctavoError(INTERNAL, id="x"))))
        engine = await cluster.start(FakeEngine(script=broken))
        cluster.tell(at(engine), services=(SERVICE,))
        await until(lambda: "the probe failed" in engine_of(gw).get("detail", ""))
        told = engine_of(gw)
        assert (told["state"], told["routable"]) == ("connecting", False)
        assert "unexpected error" in told["detail"]
        assert gw.fleet.holds("a/s")
        engine.script = always(Script())
        await state(gw, "ready")

    run(scenario)


def test_a_suspected_engine_is_told_as_such() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine), services=(SERVICE,))
        await state(gw, "ready")
        gw.replicas[0].suspected = True
        assert engine_of(gw)["state"] == "suspected"

    run(scenario)


def test_a_name_that_two_services_claim_is_told_of_both() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        rival = Service(id="b/s", names=("tiny",), created_unix_s=1)
        cluster.tell(services=(SERVICE, rival))
        await until(lambda: gw.fleet.readiness().ready)
        services: Any = report(gw.fleet, gateway="g", uptime_s=1.5)["services"]
        assert [each["naming"] for each in services] == [
            {"names": ("tiny",), "lost": (), "heirs": (("tiny", "b/s"),)},
            {"names": ("b/tiny",), "lost": (("tiny", "a/s"),), "heirs": ()},
        ]

    run(scenario)


def test_demand_is_told_for_each_service() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        cluster.tell(services=(SERVICE,))
        await until(lambda: gw.fleet.readiness().ready)
        assert report(gw.fleet, gateway="g", uptime_s=1.5) == {
            "gateway": "g",
            "uptime_s": 1.5,
            "engines": [],
            "services": [
                {
                    "service": "a/s",
                    "in_flight": 0,
                    "held": 0,
                    "queue_s": 0.0,
                    "in_use": 0.0,
                    "arrivals_per_s": 0.0,
                    "wanted_age_s": None,
                    "prompt_tokens": 0,
                    "cached_tokens": 0,
                    "naming": {"names": ("tiny",), "lost": (), "heirs": ()},
                }
            ],
        }
        gw.fleet.demand.arrived("a/s")
        holding = asyncio.create_task(gw.fleet.demand.hold("a/s", lambda: gw.fleet.holds("a/s")))
        await asyncio.sleep(0)
        told = service_of(gw)
        assert told["held"] == 1
        assert told["arrivals_per_s"] == pytest.approx(1 / 60, abs=1e-3)
        assert told["wanted_age_s"] < 5
        engine = await cluster.start(FakeEngine(script=always(Script(delay_s=0.05, tokens=10))))
        cluster.tell(at(engine), services=(SERVICE,))
        await holding
        assert service_of(gw)["held"] == 0
        for _ in range(2):
            generation = await gw.open(prompt("word " * 40))
            assert service_of(gw)["in_flight"] == 1
            async for _ in generation:
                pass
        told = service_of(gw)
        assert (told["prompt_tokens"], told["cached_tokens"]) == (400, 192)
        assert told["in_flight"] == 0
        await until(lambda: service_of(gw)["queue_s"] == 0.0)

    run(scenario)


def test_the_queue_is_that_of_the_engine_with_the_shortest() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        busy, idle = await cluster.start(FakeEngine()), await cluster.start(FakeEngine())
        busy.load.queued_prefill_tokens, busy.load.running = 10_000, 5
        busy.load.free_blocks = 1024
        second = Endpoint(address=idle.address, uid="u2", pod="a/y", service="a/s")
        cluster.tell(at(busy), services=(SERVICE,))
        await until(lambda: service_of(gw)["queue_s"] > 3.9)
        assert service_of(gw)["queue_s"] == pytest.approx(10_000 * 400e-6)
        assert service_of(gw)["in_use"] == 0.75
        cluster.tell(at(busy), second, services=(SERVICE,))
        await until(lambda: service_of(gw)["queue_s"] == 0.0)
        idle.load.running = 2
        idle.load.free_blocks = 2048
        idle.send_state()
        await until(lambda: service_of(gw)["in_use"] == 1.25)

    run(scenario)


def test_an_engine_that_runs_much_has_no_queue_and_one_whose_places_are_taken_has() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = FakeEngine()
        engine.card.max_num_seqs = 16
        engine.load.decode_us_per_step, engine.load.running = 100_000, 15
        await cluster.start(engine)
        cluster.tell(at(engine), services=(SERVICE,))
        await until(lambda: engine_of(gw).get("routable", False))
        await until(lambda: not gw.replicas[0].table.in_flight)
        assert service_of(gw)["queue_s"] == 0.0
        gw.fleet.demand.served("a/s", engine_pb2.Usage(decode_ms=20_000))
        engine.load.running, engine.load.waiting = 16, 60
        engine.load.queued_prefill_tokens = 3000
        engine.send_state()
        await until(lambda: gw.replicas[0].load.waiting == 60)
        assert service_of(gw)["queue_s"] == pytest.approx(61 * 20 / 16)

    run(scenario)


def test_every_choice_of_a_request_keeps_a_place() -> None:
    async def scenario(gw: Gateway, cluster: Cluster) -> None:
        engine = await cluster.start(FakeEngine())
        cluster.tell(at(engine), services=(SERVICE,))
        await state(gw, "ready")
        assert gw.fleet.demand.figures("a/s").place_s is None
        await gw.text(prompt("abc", n=3))
        # The engine says 1.5 ms for the prompt and 2.5 ms for the answer.
        assert gw.fleet.demand.figures("a/s").place_s == pytest.approx(3 * 4e-3)

    run(scenario)
