"""In which order requests are let in."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduling import Driver, expected, make_request, prompt_of

from octavo.engine.config import EngineConfig
from octavo.engine.policy import Policy, as_policy, waiting_queue
from octavo.engine.request import Request
from octavo.runtime.settings import doc_of
from octavo.v1.errors import UNSUPPORTED_PARAMETER, OctavoError

ARRIVALS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 90), st.integers(1, 8)), min_size=2, max_size=12
)


def served(driver: Driver, arrivals: list[tuple[int, int, int]]) -> list[Request]:
    """Plays (step, prompt, outputs) to the end; returns the requests as they came."""
    requests = [
        make_request(i + 1, prompt_of(prompt, i), max_tokens=outputs, arrival=float(at))
        for i, (at, prompt, outputs) in enumerate(sorted(arrivals))
    ]
    coming = list(requests)
    while coming or driver.scheduler.has_work():
        while coming and coming[0].arrival <= driver.now:
            driver.add(coming.pop(0))
        driver.step()
        assert driver.now < 5000, "no end"
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]
    driver.assert_idle()
    return requests


def started(request: Request) -> float:
    assert request.first_scheduled is not None
    return request.first_scheduled


def test_the_setting_offers_all_policies() -> None:
    assert doc_of(EngineConfig, "scheduling_policy").choices == get_args(Policy)
    assert [as_policy(name) for name in get_args(Policy)] == list(get_args(Policy))
    with pytest.raises(ValueError, match="lottery"):
        as_policy("lottery")


def test_36_priority_is_refused_by_who_serves_in_the_order_of_arrival() -> None:
    driver = Driver(scheduling_policy="fcfs")
    with pytest.raises(OctavoError, match="--scheduling-policy fcfs") as caught:
        driver.add(make_request(1, [1], priority=-1))
    assert (caught.value.kind, caught.value.param) == (UNSUPPORTED_PARAMETER, "priority")
    assert driver.scheduler.requests() == []
    driver.add(make_request(1, [1]))


@pytest.mark.parametrize("policy", [p for p in get_args(Policy) if p != "fcfs"])
def test_36_all_others_let_the_more_important_in_first(policy: Policy) -> None:
    driver = Driver(scheduling_policy=policy, max_num_seqs=1)
    requests = [make_request(i, prompt_of(5, i), priority=-i) for i in (1, 2, 3)]
    driver.add(*requests)
    driver.finish_all()
    assert sorted(requests, key=started) == requests[::-1]


@settings(max_examples=60)
@given(arrivals=ARRIVALS, num_blocks=st.integers(7, 20), max_num_seqs=st.integers(1, 4))
def test_29_first_steps_come_in_the_order_of_arrival(
    arrivals: list[tuple[int, int, int]], num_blocks: int, max_num_seqs: int
) -> None:
    driver = Driver(scheduling_policy="fcfs", num_blocks=num_blocks, max_num_seqs=max_num_seqs)
    times = [started(request) for request in served(driver, arrivals)]
    assert times == sorted(times)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_29_nobody_overtakes_the_first_that_does_not_fit(policy: Policy) -> None:
    driver = Driver(scheduling_policy=policy, num_blocks=4, ageing_s_per_token=1e-6)
    first = make_request(1, prompt_of(33), max_tokens=6, fairness_key="a")
    large = make_request(2, prompt_of(40, 2), fairness_key="b")
    small = make_request(3, prompt_of(5, 3), fairness_key="a")
    driver.add(first, large, small)
    driver.finish_all()
    assert started(first) < started(large) == started(small)


@pytest.mark.parametrize("policy", [p for p in get_args(Policy) if p != "fcfs"])
@pytest.mark.parametrize("lack", ["slots", "blocks"])
def test_33_a_more_important_request_preempts_for_slots_and_for_blocks(
    policy: Policy, lack: str
) -> None:
    slots = lack == "slots"
    driver = Driver(
        scheduling_policy=policy, num_blocks=64 if slots else 4, max_num_seqs=2 if slots else 8
    )
    low = [make_request(i, prompt_of(20, i), max_tokens=20, priority=5) for i in (1, 2)]
    driver.add(*low)
    driver.step()
    high = make_request(3, prompt_of(20, 3), priority=1)
    driver.add(high)
    driver.step()
    assert [r.num_preemptions for r in (*low, high)] == [0, 1, 0]
    driver.finish_all()
    assert [r.output_ids for r in (*low, high)] == [expected(r) for r in (*low, high)]


def test_the_shorter_goes_first_and_waiting_outweighs_length() -> None:
    queue = waiting_queue("shortest", ageing_s_per_token=0.5)
    long = make_request(1, prompt_of(40), arrival=0.0)
    short = make_request(2, prompt_of(4), arrival=17.0)
    late = make_request(3, prompt_of(4), arrival=18.5)
    for request in (late, short, long):
        queue.add(request)
    assert list(queue) == [short, long, late]


@settings(max_examples=60)
@given(
    arrivals=ARRIVALS,
    num_blocks=st.integers(7, 20),
    max_num_seqs=st.integers(1, 4),
    ageing=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_nobody_waits_for_shorter_ones_that_come_later_than_its_age_allows(
    arrivals: list[tuple[int, int, int]], num_blocks: int, max_num_seqs: int, ageing: float
) -> None:
    driver = Driver(
        scheduling_policy="shortest",
        ageing_s_per_token=ageing,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
    )
    requests = served(driver, arrivals)
    for one in requests:
        latest = one.arrival + ageing * len(one.prompt_ids)
        overtakers = [r for r in requests if started(r) < started(one)]
        assert all(r.arrival <= latest for r in overtakers)
    # And who came no later and is no longer was let in no later.
    for one in requests:
        for other in requests:
            if other.arrival <= one.arrival and len(other.prompt_ids) <= len(one.prompt_ids):
                assert started(other) <= started(one) or other.arrival == one.arrival
