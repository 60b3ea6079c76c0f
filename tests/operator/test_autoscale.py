from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import resource, service
from tests.operator.world import START, World

from octavo.operator.autoscale import (
    LOADING_S,
    WANTED_S,
    Decision,
    Fleet,
    Load,
    Memory,
    decide,
    load_of,
)
from octavo.operator.observed import GatewayReport, Gateways, ServiceLoad
from octavo.operator.spec import Autoscaling

IDLE = Load(
    held=0, in_flight=0, queue_s=0.0, in_use=0.0, wanted_age_s=None, quiet_s=math.inf,
    is_complete=True,
)  # fmt: skip


def rule(**fields: Any) -> Autoscaling:
    given_fields = {"minReplicas": 0, "maxReplicas": 8, "targetQueueSeconds": 2} | fields
    found = service(autoscaling=given_fields).spec.autoscaling
    assert found is not None
    return found


def fleet(
    replicas: int | None, routable: int | None = None, *, loading: int = 0, places: int = 64
) -> Fleet:
    serving = replicas or 0 if routable is None else routable
    return Fleet(replicas=replicas, routable=serving, loading=loading, places=places)


def asked(age_s: float) -> Load:
    """Nothing, after a last request."""
    return replace(IDLE, wanted_age_s=age_s, quiet_s=age_s)


def decided(
    load: Load | None, engines: Fleet, memory: Memory | None = None, now: float = START, **more: Any
) -> Decision:
    return decide(rule(**more), load, engines, memory or Memory(), now)


def busy(queue_s: float, in_flight: int = 60) -> Load:
    return replace(IDLE, queue_s=queue_s, in_flight=in_flight, wanted_age_s=0.0, quiet_s=0.0)


# Loads


def test_loads_of_all_gateways_are_taken_together() -> None:
    def report(**fields: Any) -> GatewayReport:
        mine = ServiceLoad(service="ns/a", **fields)
        return GatewayReport(gateway="g", services=(ServiceLoad(service="ns/b", held=9), mine))

    told = Gateways(
        reports=(
            report(held=1, in_flight=2, queue_s=0.5, in_use=1.25, wanted_age_s=7.0),
            report(held=2, in_flight=3, queue_s=1.5, in_use=1.0),
        ),
        silent=1,
    )
    assert load_of("ns/a", told) == Load(
        held=3, in_flight=5, queue_s=1.5, in_use=1.25, wanted_age_s=7.0, quiet_s=7.0,
        is_complete=False,
    )  # fmt: skip
    assert load_of("ns/c", told) == replace(IDLE, is_complete=False)


def reported(*loads: ServiceLoad, uptime_s: float | None = None) -> GatewayReport:
    return GatewayReport(gateway="g", uptime_s=uptime_s, services=loads)


@pytest.mark.parametrize(
    ("reports", "wanted_age_s", "quiet_s"),
    [
        ([(7.0, 900.0), (None, 800.0)], 7.0, 7.0),
        ([(7.0, 900.0), (None, 5.0)], 7.0, 5.0),
        ([(None, 900.0), (None, 800.0)], None, 800.0),
        ([(None, 900.0), (None, None)], None, 900.0),
        ([(70.0, None), (None, None)], 70.0, 70.0),
        ([(None, None)], None, math.inf),
    ],
    ids=[
        "asked",
        "another has just begun",
        "never asked",
        "one does not say",
        "none says",
        "0.1.0",
    ],
)
def test_gateways_know_of_no_request_before_they_began(
    reports: list[tuple[float | None, float | None]], wanted_age_s: float | None, quiet_s: float
) -> None:
    told = Gateways(
        reports=tuple(
            reported(ServiceLoad(service="ns/a", wanted_age_s=age_s), uptime_s=uptime_s)
            for age_s, uptime_s in reports
        )
    )
    found = load_of("ns/a", told)
    assert found is not None
    assert (found.wanted_age_s, found.quiet_s) == (wanted_age_s, quiet_s)


def test_a_gateway_that_does_not_know_the_service_yet_knows_of_no_request_either() -> None:
    found = load_of("ns/a", Gateways(reports=(reported(uptime_s=2.0),)))
    assert found is not None
    assert (found.wanted_age_s, found.quiet_s) == (None, 2.0)


def test_what_gateways_that_drain_have_counts_but_not_how_long_one_would_wait_there() -> None:
    mine = ServiceLoad(
        service="ns/a", in_flight=2, held=1, queue_s=9.0, in_use=2.0, wanted_age_s=30.0
    )
    told = Gateways(
        reports=(reported(ServiceLoad(service="ns/a", in_flight=1), uptime_s=400.0),),
        leaving=(reported(mine, uptime_s=5000.0),),
    )
    assert load_of("ns/a", told) == Load(
        held=1, in_flight=3, queue_s=0.0, in_use=0.0, wanted_age_s=30.0, quiet_s=30.0,
        is_complete=True,
    )  # fmt: skip
    # One that is not Ready yet, and may never be, has had no requests.
    starting = replace(told, leaving=(reported(uptime_s=1.0),))
    found = load_of("ns/a", starting)
    assert found is not None
    assert found.quiet_s == 400.0
    assert load_of("ns/a", replace(told, reports=())) is None, "none is left to say what is so now"


def test_without_a_gateway_nothing_is_known() -> None:
    assert load_of("ns/a", None) is None
    assert load_of("ns/a", Gateways(silent=2)) is None


# The first start and bounds


@pytest.mark.parametrize(("low", "high", "first"), [(0, 4, 1), (2, 4, 2), (0, 1, 1)])
def test_a_service_starts_with_one_engine_or_its_fewest(low: int, high: int, first: int) -> None:
    found = decided(None, fleet(None), minReplicas=low, maxReplicas=high)
    assert found.replicas == first


def test_bounds_hold_at_once() -> None:
    assert decided(None, fleet(1), minReplicas=3).replicas == 3
    assert decided(None, fleet(9), maxReplicas=5).replicas == 5


def test_what_is_not_known_changes_nothing() -> None:
    found = decided(None, fleet(3), Memory(low_since=START - 10**6))
    assert (found.replicas, found.memory.low_since) == (3, None)


# Up


def test_engines_are_added_when_requests_would_wait_too_long() -> None:
    assert decided(busy(2.0), fleet(2)).replicas == 2
    assert decided(busy(2.1), fleet(2)).replicas == 3
    found = decided(busy(5.0), fleet(2))
    assert found.replicas == 5
    assert found.memory.reason == "2 → 5: requests would wait 5.0 s"


def test_steps_and_bounds_limit_what_is_added() -> None:
    assert decided(busy(1e9), fleet(2), maxStepUp=3).replicas == 5
    assert decided(busy(1e9), fleet(7)).replicas == 8
    assert decided(busy(math.inf), fleet(1)).replicas == 5


def test_while_engines_load_no_others_are_added() -> None:
    memory = Memory(last_up=START)
    loading = fleet(3, routable=2, loading=1)
    assert decided(busy(9.0), loading, memory, START + 60).replicas == 3
    assert decided(busy(9.0), loading, memory, START + LOADING_S).replicas > 3


# Down


def test_engines_go_one_by_one_after_an_idle_window() -> None:
    first = decided(IDLE, fleet(4))
    assert (first.replicas, first.memory.low_since, first.look_again_s) == (4, START, 300)
    early = decided(IDLE, fleet(4), first.memory, START + 299)
    assert early.replicas == 4
    assert early.memory == first.memory
    late = decided(IDLE, fleet(4), first.memory, START + 300)
    assert late.replicas == 3
    assert late.memory.low_since is None
    assert decided(IDLE, fleet(4), first.memory, START + 300, maxStepDown=9).replicas == 1


@pytest.mark.parametrize(
    ("load", "engines"),
    [
        (busy(1.5, in_flight=0), fleet(4)),
        (busy(0.0, in_flight=150), fleet(4)),
        (replace(busy(0.0), in_use=2.2), fleet(4)),
        (replace(IDLE, held=1), fleet(4)),
        (replace(IDLE, is_complete=False), fleet(4)),
        (IDLE, fleet(4, routable=3, loading=1)),
    ],
    ids=[
        "a queue",
        "many running",
        "blocks in use",
        "held requests",
        "a silent gateway",
        "an engine loads",
    ],
)
def test_the_window_begins_anew(load: Load, engines: Fleet) -> None:
    found = decided(load, engines, Memory(low_since=START - 10**6))
    assert (found.replicas, found.memory.low_since) == (4, None)


def test_an_engine_that_never_serves_keeps_no_other_one() -> None:
    """It found no GPU, say: the others are enough, and it goes first."""
    stuck = fleet(4, routable=3)
    first = decided(IDLE, stuck)
    assert (first.replicas, first.memory.low_since) == (4, START)
    assert decided(IDLE, stuck, first.memory, START + 300).replicas == 3
    # What goes does not serve, so those that stay have no more to do than now.
    memory = Memory(low_since=START)
    assert decided(busy(0.0, in_flight=134), stuck, memory, START + 300).replicas == 3
    assert decided(busy(0.0, in_flight=135), stuck, memory, START + 300).replicas == 4
    half = fleet(4, routable=2)
    assert decided(busy(0.0, in_flight=89), half, memory, START + 300).replicas == 3
    assert decided(busy(0.0, in_flight=90), half, memory, START + 300).replicas == 4
    assert decided(IDLE, fleet(1, routable=0), memory, START + 300).replicas == 0


def test_engines_that_load_are_looked_at_again() -> None:
    """That one has had its time is told by no event."""
    found = decided(IDLE, fleet(4, routable=3, loading=1))
    assert found.look_again_s is not None
    assert found.look_again_s <= LOADING_S / 10
    assert decided(IDLE, fleet(4, routable=3, loading=1), minReplicas=4).look_again_s is None


def test_going_too_early_makes_patient_and_going_well_impatient_again() -> None:
    went = Memory(last_down=START, last_up=START - 50)
    back = decided(busy(9.0), fleet(3), went, START + 100)
    assert back.memory.patience == 2
    assert decided(busy(9.0), fleet(3), went, START + 601).memory.patience == 1
    again = replace(back.memory, low_since=START + 200, last_down=START)
    assert decided(IDLE, fleet(4), again, START + 500).replicas == 4
    assert decided(IDLE, fleet(4), again, START + 800).replicas == 3
    held = replace(again, last_down=START + 200)
    assert decided(IDLE, fleet(4), held, START + 800).memory.patience == 1


# Zero


def test_the_last_engine_goes_after_an_idle_window_without_a_request() -> None:
    memory = Memory(low_since=START)
    waiting = decided(asked(200.0), fleet(1), memory, START + 10_000)
    assert (waiting.replicas, waiting.look_again_s) == (1, 100)
    gone = decided(asked(300.0), fleet(1), memory, START + 10_000)
    assert gone.replicas == 0
    running = replace(asked(400.0), in_flight=1)
    assert decided(running, fleet(1), memory, START + 10_000).replicas == 1
    assert decided(IDLE, fleet(1), memory, START + 300).replicas == 0
    assert decided(IDLE, fleet(1), memory, START + 10_000, minReplicas=1).replicas == 1


def test_idleness_is_counted_from_when_the_youngest_gateway_began() -> None:
    """With one engine the window runs on under traffic; new gateways know of none."""
    memory = Memory(low_since=START)
    new = replace(IDLE, quiet_s=10.0)
    found = decided(new, fleet(1), memory, START + 10_000, idleSeconds=3600)
    assert (found.replicas, found.look_again_s) == (1, 3590)
    late = decided(
        replace(IDLE, quiet_s=3600.0), fleet(1), memory, START + 20_000, idleSeconds=3600
    )
    assert late.replicas == 0


def test_loading_is_not_idle() -> None:
    load = fleet(1, routable=0, loading=1)
    loading = decided(IDLE, load, Memory(low_since=START), START + 10_000)
    assert (loading.replicas, loading.memory.low_since) == (1, None)
    serves = decided(IDLE, fleet(1), loading.memory, START + 10_000)
    assert (serves.replicas, serves.memory.low_since) == (1, START + 10_000)


@pytest.mark.parametrize(
    "load",
    [replace(IDLE, held=1), asked(WANTED_S - 1), replace(IDLE, held=1, is_complete=False)],
    ids=["a request is held", "its client left", "another gateway is silent"],
)  # fmt: skip
def test_one_request_starts_an_engine_at_once(load: Load) -> None:
    assert decided(load, fleet(0), Memory(last_down=START)).replicas == 1


def test_an_old_request_starts_nothing() -> None:
    assert decided(asked(WANTED_S), fleet(0)).replicas == 0
    assert decided(asked(20.0), fleet(0), idleSeconds=10).replicas == 0


def test_a_new_gateway_wakes_nobody() -> None:
    assert decided(replace(IDLE, quiet_s=1.0), fleet(0)).replicas == 0


# In a loop with a model of a service


def run_loop(
    demand: Callable[[float], float], hours: float, memory: Memory | None = None, **fields: Any
) -> list[tuple[float, int]]:
    """Runs the controller against a fluid model; returns each change of the number of engines.

    An engine serves 1 unit of work a second with 10 requests; new ones load for 60 s.
    """
    kept, engines, now, backlog = memory or Memory(), 1, START, 0.0
    ready_at = [START]
    changes: list[tuple[float, int]] = []
    while now < START + hours * 3600:
        routable = sum(at <= now for at in ready_at)
        work = demand(now - START)
        backlog = max(0.0, backlog + 10 * (work - routable))
        load = Load(
            held=0,
            in_flight=round(10 * min(work, routable)),
            queue_s=backlog / max(routable, 1),
            in_use=min(work, routable),
            wanted_age_s=0.0 if work else None,
            quiet_s=0.0 if work else math.inf,
            is_complete=True,
        )
        loading = engines - routable
        found = decide(
            rule(**fields), load, fleet(engines, routable, loading=loading, places=10), kept, now
        )
        kept = Memory.of({"autoscaling": found.memory.as_status()})
        if found.replicas != engines:
            changes.append((now - START, found.replicas))
            ready_at = sorted([*ready_at, *[now + 60] * (found.replicas - engines)])
            ready_at = ready_at[: found.replicas]
            engines = found.replicas
        now += 10
    return changes


@settings(max_examples=8)
@given(st.floats(0.1, 7.5))
def test_a_steady_load_comes_to_rest(work: float) -> None:
    changes = run_loop(lambda _now: work, hours=6, minReplicas=1)
    late = [change for change in changes if change[0] > 4 * 3600]
    # A step down that was too early is tried again, but ever more rarely.
    assert len(late) <= 2
    assert len(changes) <= 30


@settings(max_examples=8)
@given(st.floats(0.5, 6.0), st.floats(0.05, 0.3), st.integers(20, 200))
def test_a_wave_does_not_make_it_flap(work: float, height: float, period_s: int) -> None:
    changes = run_loop(
        lambda now: work * (1 + height * math.sin(2 * math.pi * now / period_s)), hours=5,
        minReplicas=1,
    )  # fmt: skip
    downs = [b for a, b in pairwise(changes) if b[1] < a[1]]
    assert len(downs) <= 24


def test_load_that_ends_brings_it_down_to_its_fewest() -> None:
    changes = run_loop(lambda now: 5.0 if now < 3600 else 0.0, hours=6)
    assert max(count for _, count in changes) >= 5
    assert changes[-1][1] == 0


@settings(max_examples=200)
@given(
    st.integers(0, 12), st.integers(0, 12), st.floats(0, 1e6), st.integers(0, 1000),
    st.integers(0, 5), st.none() | st.floats(0, 1e6), st.booleans(), st.floats(0, 1e5),
    st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 12),
)  # fmt: skip
def test_it_is_bounded_deterministic_and_at_rest_when_asked_again(
    replicas: int, routable: int, queue_s: float, in_flight: int, held: int, age: float | None,
    complete: bool, low_for: float, loading: int, quiet_s: float,
    in_use: float,
) -> None:  # fmt: skip
    load = Load(
        held=held, in_flight=in_flight, queue_s=queue_s, in_use=in_use, wanted_age_s=age,
        quiet_s=quiet_s, is_complete=complete,
    )  # fmt: skip
    engines, memory = fleet(replicas, routable, loading=loading), Memory(low_since=START - low_for)
    found = decided(load, engines, memory)
    assert found == decided(load, engines, memory)
    assert 0 <= found.replicas <= 8
    if replicas <= 8:
        assert -1 <= found.replicas - replicas <= 4
    kept = Memory.of({"autoscaling": found.memory.as_status()})
    assert kept.replicas == found.replicas
    if found.replicas == replicas:
        assert decided(load, engines, kept).memory.as_status() == kept.as_status()


# With the rest of the operator


def test_a_service_goes_to_zero_and_comes_back_by_one_request() -> None:
    scaling = {"minReplicas": 0, "maxReplicas": 3}
    world = World(resource(autoscaling=scaling))
    world.settle(steps=300)
    assert world.resource["status"]["desired"] == 1
    assert world.condition("Ready")["reason"] == "Serving"
    world.now += 400
    world.settle()
    assert world.engines() == []
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("True", "ScaledToZero")
    assert world.resource["status"]["autoscaling"]["reason"] == "1 → 0: no request for 300 s"
    world.load = ServiceLoad(service="team/llama", held=1, wanted_age_s=0.5)
    world.execute(world.plan())
    assert world.deployment["spec"]["replicas"] == 1
    world.load = ServiceLoad(service="team/llama", wanted_age_s=50)
    world.settle()
    assert len(world.engines()) == 1
    assert [event.reason for event in world.events].count("Scaled") == 3


def test_a_generation_that_never_served_is_not_called_ready_at_zero() -> None:
    world = World(resource(autoscaling={"minReplicas": 0, "maxReplicas": 3}))
    world.settle()
    world.now += 400
    world.settle()
    spec = resource(
        autoscaling={"minReplicas": 0, "maxReplicas": 3}, engine={"options": {"threads": 2}}
    )["spec"]
    world.edit(spec)
    world.settle()
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("Unknown", "ScaledToZero")
