import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from octavo.gateway.demand import Demand
from octavo.gateway.metrics import GatewayMetrics
from octavo.v1 import engine_pb2
from octavo.v1.errors import OVERLOADED, OctavoError


def demand(*, hold_s: float = 10.0, max_held: int = 4) -> Demand:
    metrics = GatewayMetrics(CollectorRegistry())
    return Demand(hold_s=hold_s, max_held=max_held, metrics=metrics)


def outcomes(made: Demand, outcome: str) -> float:
    registry = made._metrics.registry
    return registry.get_sample_value("octavo_gateway_held_total", {"outcome": outcome}) or 0.0


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


class Engine:
    """Something that is not there yet."""

    def __init__(self) -> None:
        self.missing = True

    def still(self) -> bool:
        return self.missing


def test_what_is_held_is_let_go_in_the_order_of_arrival() -> None:
    async def scenario() -> None:
        made, engine, order = demand(), Engine(), list[int]()

        async def one(number: int) -> None:
            await made.hold("a/s", engine.still)
            order.append(number)

        tasks = [asyncio.create_task(one(number)) for number in range(4)]
        await asyncio.sleep(0)
        assert made.num_held == made.figures("a/s").held == 4
        made.release("a/s")  # too early: nobody can go
        await asyncio.sleep(0.01)
        assert order == []
        engine.missing = False
        made.release("another/one")
        await asyncio.sleep(0.01)
        assert order == []
        made.release("a/s")
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2, 3]
        assert made.num_held == made.figures("a/s").held == 0
        assert outcomes(made, "released") == 4

    run(scenario)


def test_too_many_are_told_when_to_come_back() -> None:
    async def scenario() -> None:
        made, engine = demand(max_held=2), Engine()
        tasks = [asyncio.create_task(made.hold(f"a/{i}", engine.still)) for i in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(OctavoError) as caught:
            await made.hold("a/s", engine.still)
        assert caught.value.kind is OVERLOADED
        assert caught.value.retry_after_ms > 0
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        engine.missing = False
        await made.hold("a/s", engine.still)
        made.release("a/1")
        await tasks[1]
        assert [outcomes(made, o) for o in ("refused", "left", "released")] == [1, 1, 2]

    run(scenario)


@pytest.mark.parametrize(
    ("hold_s", "own_s"), [(0.05, None), (30.0, 0.05), (0.05, 30.0)], ids=["ours", "its", "both"]
)
def test_nobody_is_held_for_ever(hold_s: float, own_s: float | None) -> None:
    async def scenario() -> None:
        made, loop = demand(hold_s=hold_s), asyncio.get_running_loop()
        began = loop.time()
        await made.hold("a/s", lambda: True, until=None if own_s is None else began + own_s)
        assert 0.04 < loop.time() - began < 5
        assert made.num_held == 0
        assert outcomes(made, "expired") == 1

    run(scenario)


def test_a_wish_outlives_its_client() -> None:
    async def scenario() -> None:
        made = demand()
        assert made.figures("a/s").wanted_age_s is None
        made.arrived("a/s")
        holding = asyncio.create_task(made.hold("a/s", lambda: True))
        await asyncio.sleep(0.01)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
        figures = made.figures("a/s")
        assert figures.held == 0
        assert figures.wanted_age_s is not None
        assert figures.wanted_age_s < 5
        assert figures.arrivals_per_s > 0

    run(scenario)


def test_who_was_on_its_way_counts_as_held_but_takes_no_place() -> None:
    async def scenario() -> None:
        made = demand(max_held=0)
        with made.waiting("a/s"), made.waiting("a/s"), made.waiting(""):
            assert made.figures("a/s").held == 2
            assert made.num_held == 0
        assert made.figures("a/s").held == 0

    run(scenario)


def test_tokens_are_counted_for_services_that_are_known() -> None:
    async def scenario() -> None:
        made = demand()
        made.arrived("a/s")
        for _ in range(2):
            made.served("a/s", engine_pb2.Usage(prompt_tokens=100, cached_tokens=60))
            made.served("gone/s", engine_pb2.Usage(prompt_tokens=100))
            made.served("", engine_pb2.Usage(prompt_tokens=100))
        assert (made.figures("a/s").prompt_tokens, made.figures("a/s").cached_tokens) == (200, 120)
        assert set(made._wanted) == {"a/s"}

    run(scenario)


def test_how_long_requests_keep_their_places_is_measured() -> None:
    async def scenario() -> None:
        made = demand()
        assert made.figures("a/s").place_s is None
        made.served("a/s", engine_pb2.Usage(prefill_ms=500, decode_ms=1500, queue_ms=9000))
        assert made.figures("a/s").place_s == pytest.approx(2.0)
        made.served("a/s", engine_pb2.Usage(decode_ms=1000), choices=7)
        assert made.figures("a/s").place_s == pytest.approx(2.5)
        for _ in range(60):
            made.served("a/s", engine_pb2.Usage(decode_ms=100))
        assert made.figures("a/s").place_s == pytest.approx(0.1, abs=0.01)
        made.served("a/s", engine_pb2.Usage(prompt_tokens=1))
        assert made.figures("a/s").place_s == pytest.approx(0.1, abs=0.01), "it measures nothing"

    run(scenario)


def test_a_service_that_is_gone_is_forgotten_and_lets_go() -> None:
    async def scenario() -> None:
        made, engine = demand(), Engine()
        made.arrived("b/s")
        holding = asyncio.create_task(made.hold("a/s", engine.still))
        await asyncio.sleep(0)
        engine.missing = False
        made.keep({"b/s"})
        await holding
        assert set(made._wanted) == {"b/s"}
        assert made.num_held == 0

    run(scenario)
