"""Scheduler and cache over a host tier: what comes back, and who goes on after a swap."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.random_checkpoint import VOCAB, random_checkpoint
from tests.engine.scheduling import Driver, expected, make_request, prompt_of
from tests.fakes import BLOCK, mark_of

from octavo.engine.batch import StepInput
from octavo.engine.cost import CostModel
from octavo.engine.model_runner import ModelRunner
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.request import FinishReason, Request, RequestId, Status
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import REQUEST_FAILED, OctavoError

SWAP = Preemption(mode=PreemptionMode.SWAP)
RECOMPUTE = Preemption(mode=PreemptionMode.RECOMPUTE)


def serve(driver: Driver, *requests: Request) -> None:
    """Runs requests to their end, which has to be the right one."""
    driver.add(*requests)
    driver.finish_all()
    for request in requests:
        assert request.output_ids == expected(request)


def step_until(driver: Driver, happened: Callable[[], bool]) -> None:
    """Steps until something has happened, which has to be soon."""
    for _ in range(200):
        if happened():
            return
        driver.step()
    raise AssertionError("it did not happen")


def computed(driver: Driver) -> Counter[RequestId]:
    """Tokens that the runner computed for each request."""
    counts: Counter[RequestId] = Counter()
    for step in driver.runner.steps:
        counts.update({row.request.id: len(row.token_ids) for row in step.rows})
    return counts


def prefix_hashes(request: Request, blocks: int) -> list[BlockHash]:
    return request.block_hashes[:blocks]


def test_05_an_evicted_prefix_comes_back_from_the_host_without_being_computed() -> None:
    """Semantics 5, 7: the walk goes on below the pool, and the last block is computed anew."""
    driver = Driver(num_blocks=6, host_slots=16)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(80, 2)))
    again = make_request(3, prompt_of(64, 1))
    serve(driver, again)
    assert again.num_cached == 48
    assert (driver.cache.hits, driver.cache.host_hits) == (0, 48)
    assert computed(driver)[RequestId(3)] == 64 - 48 + 3
    driver.assert_idle()


def test_05_hits_of_the_pool_come_first_and_those_of_the_host_follow() -> None:
    """Semantics 5, 13: a chain loses its tail first, so the tail is what the host has."""
    driver = Driver(num_blocks=6, host_slots=16)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(60, 2), max_tokens=2))
    assert driver.cache.host.counts().kept == 2
    again = make_request(3, prompt_of(64, 1))
    hits = len(driver.cache.match(again))
    assert 0 < hits < 3
    serve(driver, again)
    assert again.num_cached == 48
    assert (driver.cache.hits, driver.cache.host_hits) == (16 * hits, 48 - 16 * hits)


def test_looking_from_the_queue_counts_nothing_and_moves_nothing() -> None:
    """Semantics 9."""
    driver = Driver(num_blocks=6, host_slots=16)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(80, 2)))
    before = driver.cache.host.counts()
    driver.cache.match(make_request(3, prompt_of(64, 1)))
    assert (driver.cache.host_hits, driver.cache.host.counts()) == (0, before)


def test_two_equal_prompts_of_one_step_restore_once() -> None:
    """Semantics 10: the second hits what the first is only about to get."""
    driver = Driver(num_blocks=12, host_slots=16)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(180, 2)))
    driver.add(make_request(3, prompt_of(64, 1)), make_request(4, prompt_of(64, 1)))
    step = driver.plan()
    assert step is not None
    assert len(step.rows) == 2
    assert len(step.restores) == 3
    driver.run(step)
    driver.finish_all()
    driver.assert_idle()


def test_a_request_for_prompt_logprobs_restores_nothing() -> None:
    """Semantics 8."""
    driver = Driver(num_blocks=6, host_slots=16)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(80, 2)))
    scored = make_request(3, prompt_of(64, 1), prompt_logprobs=1)
    serve(driver, scored)
    assert (scored.num_cached, computed(driver)[scored.id]) == (0, 67)


def test_a_block_is_told_as_removed_when_the_last_tier_has_lost_it() -> None:
    """Semantics 15: the router credits what any tier holds."""
    driver = Driver(num_blocks=6, host_slots=8)
    first = make_request(1, prompt_of(64, 1))
    serve(driver, first)
    serve(driver, make_request(2, prompt_of(80, 2)))
    assert set(prefix_hashes(first, 4)) <= driver.known.keys()
    for seed in range(3, 8):
        serve(driver, make_request(seed, prompt_of(80, seed)))
    assert not set(prefix_hashes(first, 4)) & driver.known.keys()


def test_poisoned_content_is_forgotten_in_the_host_too() -> None:
    bad = RequestId(3)
    driver = Driver(num_blocks=6, host_slots=16, poison=lambda r: r.id == bad)
    serve(driver, make_request(1, prompt_of(64, 1)))
    serve(driver, make_request(2, prompt_of(80, 2)))
    driver.add(make_request(bad, prompt_of(64, 1)))
    driver.finish_all()
    again = make_request(4, prompt_of(64, 1))
    assert not set(prefix_hashes(make_request(1, prompt_of(64, 1)), 4)) & driver.known.keys()
    serve(driver, again)
    assert again.num_cached == 0


def test_reset_clears_the_host_and_is_refused_while_a_request_is_swapped_out() -> None:
    """Semantics 20."""
    driver = Driver(num_blocks=8, host_slots=16, preemption=SWAP)
    driver.add(make_request(1, prompt_of(50, 1), max_tokens=40))
    driver.add(make_request(2, prompt_of(50, 2), max_tokens=40))
    step_until(driver, lambda: driver.scheduler.num_swaps > 0)
    first = next(r for r in driver.scheduler.requests() if r.status is Status.RUNNING)
    driver.end(first, FinishReason.ABORT)
    assert not driver.cache.reset()
    driver.finish_all()
    driver.assert_idle()
    assert driver.cache.host.counts().kept == 0


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_34_who_was_swapped_goes_on_without_computing_anything_twice(prefix_caching: bool) -> None:
    """Semantics 34, with the content kept."""
    driver = Driver(num_blocks=9, host_slots=16, prefix_caching=prefix_caching, preemption=SWAP)
    requests = [make_request(i, prompt_of(40, i), max_tokens=40) for i in (1, 2, 3)]
    serve(driver, *requests)
    assert driver.scheduler.num_swaps == driver.scheduler.num_preemptions > 0
    for request in requests:
        assert computed(driver)[request.id] == 40 + 40 - 1
    driver.assert_idle()


def test_a_victim_that_the_host_has_no_room_for_is_computed_again() -> None:
    """Semantics 34."""
    driver = Driver(num_blocks=9, host_slots=2, prefix_caching=False, preemption=SWAP)
    requests = [make_request(i, prompt_of(40, i), max_tokens=40) for i in (1, 2, 3)]
    serve(driver, *requests)
    assert driver.scheduler.num_swaps == 0 < driver.scheduler.num_preemptions
    driver.assert_idle()


@pytest.mark.parametrize(("copy_us", "swaps"), [(1.0, True), (1e6, False)])
def test_auto_swaps_if_copies_are_cheaper_than_the_prefill(copy_us: float, *, swaps: bool) -> None:
    cost = CostModel(prefill_us_per_token=100.0, copy_us_per_block=copy_us)
    driver = Driver(num_blocks=9, host_slots=16, preemption=Preemption(cost=cost))
    serve(driver, *[make_request(i, prompt_of(40, i), max_tokens=40) for i in (1, 2, 3)])
    assert driver.scheduler.num_preemptions > 0
    assert bool(driver.scheduler.num_swaps) is swaps


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_a_swapped_request_that_ends_leaves_its_slots(end: str) -> None:
    deadline = 40.0 if end == "deadline" else None
    driver = Driver(num_blocks=8, host_slots=16, prefix_caching=False, preemption=SWAP)
    driver.add(make_request(1, prompt_of(50, 1), max_tokens=60))
    second = make_request(2, prompt_of(50, 2), max_tokens=60, deadline=deadline)
    driver.add(second)
    step_until(driver, lambda: driver.scheduler.num_swaps > 0)
    assert driver.cache.host.counts().used == 4
    if end == "abort":
        driver.end(second, FinishReason.ABORT)
    step_until(driver, lambda: second.status is Status.FINISHED)
    assert driver.cache.host.counts().used == 0
    driver.finish_all()
    driver.assert_idle()


def test_a_resumed_request_takes_hits_of_the_pool_before_what_it_was_swapped_with() -> None:
    """Room was counted with the hits, so they are what it gets, whatever its slots are called."""
    driver = Driver(num_blocks=8, host_slots=16, preemption=SWAP)
    cache, host = driver.cache, driver.cache.host
    first = make_request(1, prompt_of(40), max_tokens=4)
    second = make_request(2, prompt_of(40), max_tokens=4)
    driver.add(first, second)
    driver.step()
    driver.step()
    assert cache.swap_out([second])
    driver.runner.run(StepInput(rows=(), offloads=tuple(host.offloads())))
    cache.commit()
    for hash_ in first.block_hashes:
        host.forget(hash_)
    hits = cache.match(second)
    assert len(hits) == 2
    assert cache.admit(second, hits) == second.num_computed == 41
    assert list(cache.table(second))[:2] == hits == list(cache.table(first))[:2]
    assert len(host.restores()) == 1
    cache.commit()
    cache.check_integrity()


def test_content_that_this_very_step_is_to_compute_cannot_be_swapped() -> None:
    """Semantics 10, 19: an offload comes before the rows."""
    driver = Driver(num_blocks=16, host_slots=16, preemption=SWAP)
    first, second = make_request(1, prompt_of(40)), make_request(2, prompt_of(40))
    driver.add(first, second)
    step = driver.plan()
    assert step is not None
    assert second.num_computed == 32
    assert not driver.cache.swap_out([second])
    assert step.offloads == tuple(driver.cache.host.offloads()) == ()
    driver.run(step)
    assert driver.cache.swap_out([second])
    driver.cache.check_integrity()


def test_who_was_swapped_early_takes_what_others_have_computed_since() -> None:
    driver = Driver(num_blocks=16, host_slots=16, max_batched_tokens=32, preemption=SWAP)
    first = make_request(1, prompt_of(70), max_tokens=4)
    second = make_request(2, prompt_of(16) + prompt_of(60)[16:], max_tokens=4)
    driver.add(second)
    driver.step()
    cache = driver.cache
    driver.scheduler._roster.preempt(second, driver.now, swap=True)
    assert (second.num_computed, cache.is_swapped(second)) == (32, True)
    driver.runner.run(StepInput(rows=(), offloads=tuple(cache.host.offloads())))
    cache.commit()
    driver.scheduler._roster.add(first, driver.now)
    cache.admit(first, cache.match(first))
    cache.extend(first, 64)
    hits = cache.match(second)
    assert len(hits) == 3
    assert cache.admit(second, hits) == 48
    assert not cache.is_swapped(second)


def test_25_forks_that_are_swapped_together_share_slots_and_get_shared_blocks_back() -> None:
    """Decided for groups that are preempted as one; semantics 21, 25."""
    driver = Driver(num_blocks=16, host_slots=16)
    group = make_request(1, prompt_of(40), n=3, max_tokens=8)
    choices = [group, *group.siblings]
    driver.add(group)
    driver.step()
    cache = driver.cache
    tables = {c.id: list(cache.table(c)) for c in choices}
    assert cache.swap_out(choices)
    step = StepInput(rows=(), offloads=tuple(cache.host.offloads()))
    assert len(step.offloads) == cache.host.num_swapped([c.id for c in choices]) == 3
    driver.runner.run(step)
    cache.commit()
    assert cache.num_available == cache.num_allocatable
    cache.reset()
    cache.resume(choices)
    assert len(cache.host.restores()) == 3 - 2  # the two full blocks are in the pool still
    driver.runner.run(StepInput(rows=(), restores=tuple(cache.host.restores())))
    cache.commit()
    cache.check_integrity()
    again = {c.id: list(cache.table(c)) for c in choices}
    assert len({tuple(t) for t in again.values()}) == 1
    for choice in choices:
        content = [driver.runner.pool[b] for b in again[choice.id]]
        prompt = [token ^ mark_of(choice.hash_root) for token in choice.prompt_ids]
        assert list(itertools.chain(*content))[:40] == prompt
    assert tables.keys() == again.keys()
    driver.finish_all()
    for choice in choices:
        assert choice.output_ids == expected(choice)
    driver.assert_idle()


def test_a_step_that_fails_after_a_swap_makes_the_victim_start_over() -> None:
    """Nobody knows whether its content has arrived."""
    broken: list[StepInput] = []

    def breaks(step: StepInput) -> None:
        if step.offloads and not broken:
            broken.append(step)
            raise OctavoError(REQUEST_FAILED)

    driver = Driver(
        num_blocks=9, host_slots=16, prefix_caching=False, preemption=SWAP, before=breaks
    )
    requests = [make_request(i, prompt_of(40, i), max_tokens=40) for i in (1, 2, 3)]
    driver.add(*requests)
    step_until(driver, lambda: bool(broken))
    assert not any(driver.cache.is_swapped(r) for r in requests)
    assert all(r.num_computed == 0 for r in requests)
    driver.finish_all()
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]
    driver.assert_idle()


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_long_prompts_with_a_shared_prefix_in_a_tiny_pool_all_finish(mode: PreemptionMode) -> None:
    """Case 27: no moment with nothing running and somebody waiting, whatever is in which tier."""
    driver = Driver(num_blocks=16, host_slots=24, preemption=Preemption(mode=mode))
    shared = prompt_of(96)
    requests = [make_request(i, shared + prompt_of(50 + i, i), max_tokens=30) for i in range(1, 13)]
    serve(driver, *requests)
    assert driver.scheduler.num_preemptions > 0
    assert driver.cache.host.counts().offloaded > 0
    driver.assert_idle()


def real_runner(num_blocks: int, host_slots: int) -> ModelRunner:
    runner = ModelRunner(
        random_checkpoint(), dtype=torch.bfloat16, block_tokens=BLOCK, max_batched_tokens=64
    )
    runner.allocate(num_blocks + 1, host_slots + 1)
    runner.pool.fill_(float("nan"))
    runner.host_pool.fill_(float("nan"))
    return runner


def answers(num_blocks: int, host_slots: int, lengths: list[int]) -> tuple[Driver, list[list[int]]]:
    """What a real model says, drawn at temperature 1, while the pool is as small as given."""
    runner = real_runner(num_blocks, host_slots)
    driver = Driver(num_blocks=num_blocks, host_slots=host_slots, preemption=SWAP, runner=runner)
    requests = [
        make_request(i, [t % VOCAB for t in prompt_of(length, i)], max_tokens=20, n=1 + i % 2)
        for i, length in enumerate(lengths, 1)
    ]
    choices = [c for i, r in enumerate(requests) for c in (r, *r.siblings)]
    for index, choice in enumerate(choices):
        choice.id = RequestId(index + 1)
    driver.add(*requests)
    driver.finish_all()
    driver.assert_idle()
    return driver, [c.output_ids for c in choices]


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=3, max_size=5),
    num_blocks=st.integers(8, 11),
    host_slots=st.integers(6, 24),
)
def test_34_tokens_are_the_same_bits_with_and_without_swaps(
    lengths: list[int], num_blocks: int, host_slots: int
) -> None:
    """Semantics 34, 47 on a real model: what comes back is what went out."""
    _, undisturbed = answers(64, 1, lengths)
    _, disturbed = answers(num_blocks, host_slots, lengths)
    assert disturbed == undisturbed
