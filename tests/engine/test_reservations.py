"""What is set aside for requests that have lost their blocks too often."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduling import Driver, expected, make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.block_manager import BlockManager
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import FinishReason, Request, Status
from octavo.engine.reservations import Reservations


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockManager(11, BLOCK), enabled=False)


def admitted(cache: PrefixCache, request: Request) -> Request:
    cache.admit(request, [])
    return request


def test_a_request_is_due_after_so_many_preemptions_and_without_a_bound_never(
    cache: PrefixCache,
) -> None:
    request = make_request(1, prompt_of(5))
    due = []
    for request.num_preemptions in range(4):
        due.append([Reservations(cache, bound).is_due(request) for bound in (0, 2)])
    assert due == [[False, False], [False, False], [False, True], [False, True]]


def test_what_it_takes_is_no_longer_set_aside(cache: PrefixCache) -> None:
    reservations = Reservations(cache, 1)
    request = admitted(cache, make_request(1, prompt_of(20), max_tokens=45))
    assert reservations.worst(request) == 4  # the 65th token needs no block
    reservations.protect(request)
    assert reservations.set_aside() == 2
    assert reservations.set_aside(but_for=request) == 0
    request.num_computed = 20
    cache.extend(request, 33)
    assert reservations.set_aside() == 1
    reservations.release(request)
    assert reservations.set_aside() == 0


def test_a_group_has_its_prompt_once_and_each_choice_its_own_rest(cache: PrefixCache) -> None:
    reservations = Reservations(cache, 1)
    group = admitted(cache, make_request(1, prompt_of(20), n=3, max_tokens=20))
    # Three blocks for the first; two for each other, whose first block is the first's; and one for
    # the first when it has to copy the partial block that it shares with the others.
    assert reservations.worst(group) == 3 + 2 * 2 + 1
    reservations.protect(group)
    assert reservations.set_aside() == 6
    group.num_computed = 20
    siblings, before = group.siblings, reservations.set_aside()
    for sibling in siblings:
        cache.fork(group, sibling)
        sibling.num_computed = 20
        reservations.inherit(group, sibling)
    group.siblings = ()
    assert all(sibling in reservations for sibling in siblings)
    assert reservations.set_aside() == before


def test_of_a_group_larger_than_the_pool_the_first_choice_is_protected(cache: PrefixCache) -> None:
    reservations = Reservations(cache, 1)
    group = admitted(cache, make_request(1, prompt_of(20), n=3, max_tokens=80))
    assert reservations.worst(group) == 7
    reservations.protect(group)
    assert reservations.set_aside() == 5
    reservations.inherit(group, group.siblings[0])
    assert group.siblings[0] not in reservations


def test_others_see_less_and_a_protected_request_is_no_victim() -> None:
    driver = Driver(num_blocks=6, max_preemptions=1, long_prefill_tokens=64)
    old = make_request(1, prompt_of(31), max_tokens=20)
    young = make_request(2, prompt_of(31, 2), max_tokens=34)
    young.num_preemptions = 1
    driver.add(young)
    driver.step()
    driver.add(old)
    driver.step()
    assert driver.scheduler.num_reserved_blocks == 2
    assert old.status is Status.RUNNING
    driver.add(make_request(3, prompt_of(5, 3)))
    driver.step()
    driver.step()
    assert old.num_preemptions == 1, "it comes first in the order, but has to make room"
    assert driver.scheduler.num_running == 1
    driver.finish_all()
    assert young.num_preemptions == 1
    assert [r.output_ids for r in (old, young)] == [expected(old), expected(young)]
    driver.assert_idle()


def test_a_more_important_request_preempts_nothing_that_is_protected() -> None:
    driver = Driver(max_num_seqs=1, max_preemptions=1)
    low = make_request(1, prompt_of(5), max_tokens=9, priority=5)
    low.num_preemptions = 1
    driver.add(low)
    driver.step()
    high = make_request(2, prompt_of(5, 2))
    driver.add(high)
    driver.step()
    assert (low.status, high.status) == (Status.RUNNING, Status.WAITING)
    driver.finish_all()
    assert low.num_preemptions == 1


def test_a_failed_step_counts_like_any_other_loss_of_blocks() -> None:
    driver = Driver(max_preemptions=1)
    request = make_request(1, prompt_of(20), max_tokens=40)
    driver.add(request, make_request(2, prompt_of(5)))
    step = driver.plan()
    assert step is not None
    driver.scheduler.fail(step)
    while request.status is not Status.RUNNING:
        driver.step()
    assert driver.scheduler.num_reserved_blocks == 2
    driver.finish_all()
    driver.assert_idle()


LOADS = st.lists(
    st.tuples(
        st.integers(0, 20),  # step before which it comes
        st.integers(1, 60),  # prompt
        st.integers(1, 40),  # outputs
        st.sampled_from([1, 1, 1, 2, 4]),  # choices
        st.sampled_from([0, 0, 1, -1]),  # priority
        st.booleans(),  # whether it is aborted some steps later
    ),
    min_size=2,
    max_size=14,
)


@settings(max_examples=150)
@given(
    loads=LOADS,
    spare=st.integers(0, 3),
    max_preemptions=st.sampled_from([1, 2, 3]),
    policy=st.sampled_from(["priority", "shortest", "fair"]),
    prefix_caching=st.booleans(),
)
def test_in_a_pool_for_one_worst_case_all_end_and_nobody_loses_its_blocks_too_often(
    loads: list[tuple[int, int, int, int, int, bool]],
    spare: int,
    max_preemptions: int,
    policy: str,
    prefix_caching: bool,
) -> None:
    largest = max(-(-(prompt + outputs - 1) // BLOCK) for _, prompt, outputs, *_ in loads)
    driver = Driver(
        num_blocks=largest + spare,
        max_preemptions=max_preemptions,
        scheduling_policy=policy,  # type: ignore[arg-type]
        prefix_caching=prefix_caching,
        max_batched_tokens=40,
        long_prefill_tokens=16,
    )
    pending: dict[int, list[tuple[Request, bool]]] = {}
    choices = []
    for i, (at, prompt, outputs, n, priority, aborted) in enumerate(loads):
        request = make_request(
            10 * (i + 1),
            prompt_of(prompt, i % 3),
            max_tokens=outputs,
            n=n,
            priority=priority,
            fairness_key=str(i % 2),
            arrival=float(at),
        )
        choices += [(choice, aborted) for choice in (request, *request.siblings)]
        pending.setdefault(at, []).append((request, aborted))
    leaving: list[tuple[int, Request]] = []
    safe: set[Request] = set()
    """Those whose blocks are theirs to the end, and choices that will be forked from them."""
    steps = 0
    while pending or driver.scheduler.has_work():
        for request, aborted in pending.pop(steps, ()):
            driver.add(request)
            leaving += [(steps + 7, request)] if aborted else []
        driver.step()
        steps += 1
        assert all(request.status is not Status.PREEMPTED for request in safe)
        for request, as_group in driver.scheduler._roster.reservations._protected.values():
            safe |= {request, *(request.siblings if as_group else ())}
        for at, request in leaving:
            if at == steps and request.status is not Status.FINISHED:
                driver.end(request, FinishReason.ABORT)
        assert steps < 5000, "no end"
    assert driver.errors == {}
    for choice, aborted in choices:
        assert choice.num_preemptions <= max_preemptions
        assert choice.output_ids == expected(choice)[: len(choice.output_ids)]
        assert aborted or choice.output_ids == expected(choice)
    driver.assert_idle()
