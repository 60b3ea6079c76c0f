"""What comes of requests: queue, fork, end."""

from __future__ import annotations

import pytest
from tests.engine.scheduling import Driver, expected, make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.block_manager import IntegrityError
from octavo.engine.planner import Planner
from octavo.engine.request import FinishReason, Status
from octavo.v1.errors import OctavoError


def test_38_queue_is_bounded_in_requests() -> None:
    """Semantics 38: waiting and running count."""
    driver = Driver(max_queued_requests=2, max_num_seqs=1)
    driver.add(make_request(1, prompt_of(5)), make_request(2, prompt_of(5)))
    driver.step()
    with pytest.raises(OctavoError, match="2 of 2 requests") as caught:
        driver.add(make_request(3, prompt_of(5)))
    assert caught.value.kind.status == 503
    assert caught.value.retry_after_ms >= 1000
    driver.finish_all()
    driver.add(make_request(4, prompt_of(5)))


def test_38_queue_is_bounded_in_tokens_but_takes_any_request_when_empty() -> None:
    """Semantics 38."""
    driver = Driver(max_queued_tokens=50)
    driver.add(make_request(1, prompt_of(60)))
    with pytest.raises(OctavoError, match="60 of 50 tokens"):
        driver.add(make_request(2, prompt_of(1)))
    driver.step()
    assert driver.scheduler.queued_prefill_tokens == 0
    driver.add(make_request(2, prompt_of(50)))


def test_38_token_cap_counts_what_runs_and_is_not_computed() -> None:
    driver = Driver(max_queued_tokens=50, max_batched_tokens=16)
    driver.add(make_request(1, prompt_of(60)))
    driver.step()
    with pytest.raises(OctavoError, match="44 of 50 tokens"):
        driver.add(make_request(2, prompt_of(7, 2)))
    driver.add(make_request(2, prompt_of(6, 2)))


def test_queue_that_stands_still_loses_its_head(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    requests = [make_request(i, prompt_of(5, i)) for i in (1, 2, 3)]
    driver.add(*requests)
    with monkeypatch.context() as patch:
        patch.setattr(Planner, "_admit_waiting", lambda *_: None)
        for _ in range(9):
            driver.step()
    assert driver.errors == {1: "queue_stalled"}
    driver.finish_all()
    assert requests[2].output_ids == expected(requests[2])


def test_what_another_engine_let_in_is_taken_by_a_full_queue_too() -> None:
    driver = Driver(max_queued_requests=1)
    driver.add(make_request(1, prompt_of(5)))
    driver.scheduler.add([make_request(2, prompt_of(5))], driver.now, admitted=True)
    assert driver.scheduler.num_waiting == 2


def test_who_saw_an_engine_die_runs_alone_and_those_that_ran_go_on_between() -> None:
    driver = Driver(max_batched_tokens=16)
    driver.add(make_request(1, prompt_of(5), max_tokens=9))
    driver.step()
    suspect = make_request(2, prompt_of(40), max_tokens=9)
    driver.scheduler.add([suspect], driver.now, suspect=True)
    rows = []
    for _ in range(6):
        step = driver.step()
        assert step is not None
        rows.append([(row.request.id, len(row.token_ids)) for row in step.rows])
    alone, others = rows[:5:2], rows[1:4:2]
    assert alone == [[(2, 16)], [(2, 16)], [(2, 8)]]
    assert others == [[(1, 1)], [(1, 1)]]
    assert rows[5] == [(1, 1), (2, 1)]


def test_38_retry_time_follows_the_measured_speed() -> None:
    driver = Driver(max_queued_requests=1, max_batched_tokens=8)
    driver.prefill_us_per_token = 62_500
    driver.add(make_request(1, prompt_of(160)))
    driver.step()  # 152 tokens are left
    with pytest.raises(OctavoError) as caught:
        driver.add(make_request(2, prompt_of(5)))
    assert caught.value.retry_after_ms == 9500


def test_group_larger_than_the_slots_is_refused() -> None:
    driver = Driver(max_num_seqs=2)
    with pytest.raises(OctavoError, match="n: must be at most 2"):
        driver.add(make_request(1, prompt_of(5), n=3))
    assert driver.scheduler.requests() == []


def test_refused_request_leaves_no_trace() -> None:
    """Reliability C4."""
    driver = Driver(max_queued_requests=1)
    driver.add(make_request(1, prompt_of(5)))
    with pytest.raises(OctavoError):
        driver.add(make_request(2, prompt_of(5), n=3))
    assert [r.id for r in driver.scheduler.requests()] == [1]


def test_counts_describe_the_load() -> None:
    driver = Driver(num_blocks=10, max_batched_tokens=32, max_num_seqs=1)
    driver.add(make_request(1, prompt_of(40)), make_request(2, prompt_of(7)))
    scheduler = driver.scheduler
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 2)
    assert (scheduler.queued_prefill_tokens, scheduler.waiting_tokens) == (47, 47)
    driver.step()
    assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
    assert (scheduler.queued_prefill_tokens, scheduler.waiting_tokens) == (8 + 7, 7)
    assert (scheduler.num_free_blocks, scheduler.num_cached_free_blocks) == (7, 0)
    driver.finish_all()
    assert (scheduler.queued_prefill_tokens, scheduler.waiting_tokens) == (0, 0)
    assert (scheduler.num_free_blocks, scheduler.num_cached_free_blocks) == (8, 2)


def test_oldest_runnable_is_the_age_of_the_longest_wait() -> None:
    driver = Driver(max_num_seqs=1)
    assert driver.scheduler.oldest_runnable(5.0) == 0.0
    driver.add(make_request(1, prompt_of(5), max_tokens=9))
    driver.step()
    assert driver.scheduler.oldest_runnable(5.0) == 0.0
    driver.scheduler.add([make_request(2, prompt_of(5))], 2.0)
    driver.scheduler.add([make_request(3, prompt_of(5), priority=-5)], 3.0)
    assert driver.scheduler.oldest_runnable(5.0) == 3.0


def test_requests_past_a_deadline_are_listed_until_they_are_finished() -> None:
    driver = Driver(max_num_seqs=1)
    running = make_request(1, prompt_of(5), max_tokens=99, deadline=10.0, queue_deadline=3.0)
    waiting = make_request(2, prompt_of(5), queue_deadline=3.0)
    patient = make_request(3, prompt_of(5))
    driver.add(running, waiting, patient)
    driver.step()
    scheduler = driver.scheduler
    assert scheduler.expire(2.9) == []
    assert scheduler.expire(3.0) == [waiting]
    assert scheduler.expire(3.0) == [waiting]
    scheduler.finish(waiting)
    assert scheduler.expire(9.9) == []
    assert scheduler.expire(10.0) == [running]


def test_unforked_siblings_expire_with_the_request_that_carries_them() -> None:
    driver = Driver()
    group = make_request(1, prompt_of(5), n=3, deadline=4.0)
    driver.add(group)
    assert driver.scheduler.expire(4.0) == [group]
    driver.scheduler.finish(group)
    driver.assert_idle()


def test_siblings_expire_on_their_own_once_forked() -> None:
    driver = Driver()
    group = make_request(1, prompt_of(5), n=2, max_tokens=50, deadline=9.0)
    sibling = group.siblings[0]
    driver.add(group)
    driver.step()
    assert driver.scheduler.expire(9.0) == [group, sibling]


def test_39_only_one_step_is_in_flight() -> None:
    driver = Driver()
    request = make_request(1, prompt_of(5))
    driver.add(request)
    step = driver.plan()
    assert step is not None
    with pytest.raises(IntegrityError, match="a step is in flight"):
        driver.plan()
    with pytest.raises(IntegrityError, match="in flight"):
        driver.scheduler.finish(request)
    driver.run(step)
    with pytest.raises(IntegrityError, match="not the one"):
        driver.scheduler.commit(step)


@pytest.mark.parametrize("length", [kb + d for kb in (16, 32, 48) for d in (-1, 0, 1)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_cached_tokens_are_what_was_skipped(length: int, prefix_caching: bool) -> None:
    """Semantics 7, case 36: around block boundaries, three times each, as with the cache off."""
    driver = Driver(prefix_caching=prefix_caching)
    requests = []
    for i in range(3):
        request = make_request(7, prompt_of(length), arrival=float(i))
        driver.add(request)
        driver.finish_all()
        requests.append(request)
    hit = (length - 1) // BLOCK * BLOCK if prefix_caching else 0
    assert [r.num_cached for r in requests] == [0, hit, hit]
    assert [r.output_ids for r in requests] == [expected(requests[0])] * 3
    driver.assert_idle()


def test_random_prompts_under_preemption_have_no_hits() -> None:
    """Semantics 9, case 36: recomputing after a preemption is no hit of a caller."""
    driver = Driver(num_blocks=7, max_batched_tokens=40)
    requests = [make_request(i, prompt_of(40, i), max_tokens=20) for i in range(12)]
    driver.add(*requests)
    driver.finish_all()
    assert driver.scheduler.num_preemptions > 0
    assert driver.cache.preempted_hits > 0
    assert driver.cache.hits == 0
    assert driver.cache.queries == 12 * 40
    assert all(r.num_cached == 0 and r.output_ids == expected(r) for r in requests)


def test_tiny_pool_with_a_shared_prefix_does_not_stall() -> None:
    """Case 27: several long prompts at once, none of which can be joined by many others."""
    driver = Driver(num_blocks=7, max_batched_tokens=32, long_prefill_tokens=16)
    prefix = prompt_of(48)
    requests = [make_request(i, [*prefix, *prompt_of(30, i)], max_tokens=30) for i in range(8)]
    driver.add(*requests)
    driver.finish_all()
    assert driver.scheduler.num_preemptions > 0
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]
    driver.assert_idle()


def test_group_computes_its_prompt_once_and_each_choice_is_itself() -> None:
    driver = Driver(max_batched_tokens=32)
    group = make_request(1, prompt_of(50), n=3, max_tokens=20)
    choices = [group, *group.siblings]
    driver.add(group)
    driver.finish_all()
    prompt_rows = [r for s in driver.runner.steps for r in s.rows if r.start < 50]
    assert sum(len(r.token_ids) for r in prompt_rows) == 50
    assert [c.output_ids for c in choices] == [expected(c) for c in choices]
    assert len({tuple(c.output_ids) for c in choices}) == 3
    assert group.siblings == ()
    driver.assert_idle()


def test_25_group_preempted_in_its_prompt_starts_over_as_a_group() -> None:
    """Semantics 25."""
    driver = Driver(max_num_seqs=3, max_batched_tokens=32)
    group = make_request(1, prompt_of(50), n=3, priority=5)
    choices = [group, *group.siblings]
    driver.add(group)
    driver.step()
    urgent = make_request(10, prompt_of(3, 1), priority=1)
    driver.add(urgent)
    driver.step()
    assert group.status is Status.PREEMPTED
    driver.finish_all()
    assert [c.output_ids for c in choices] == [expected(c) for c in choices]
    driver.assert_idle()


def test_forked_choices_are_preempted_one_by_one() -> None:
    """Semantics 25."""
    driver = Driver(num_blocks=6)
    group = make_request(1, prompt_of(20), n=3, max_tokens=40)
    choices = [group, *group.siblings]
    driver.add(group)
    driver.finish_all()
    assert driver.scheduler.num_preemptions > 0
    assert group.num_preemptions == 0
    assert [c.output_ids for c in choices] == [expected(c) for c in choices]
    driver.assert_idle()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("index", range(3))
def test_choice_can_end_at_any_time_without_touching_the_others(steps: int, index: int) -> None:
    """Reliability E4, E5; in the queue, in the prompt, at the fork, after it."""
    driver = Driver(max_batched_tokens=32)
    neighbour = make_request(10, prompt_of(30), max_tokens=12)
    group = make_request(1, prompt_of(50), n=3, max_tokens=12)
    choices = [group, *group.siblings]
    driver.add(group, neighbour)
    for _ in range(steps):
        driver.step()
    victim = choices[index]
    ended = {victim, *victim.siblings}
    driver.end(victim, FinishReason.ABORT)
    driver.scheduler.check_integrity()
    assert all(r.status is Status.FINISHED for r in ended)
    driver.finish_all()
    for request in (*choices, neighbour):
        if request not in ended:
            assert request.output_ids == expected(request)
    driver.assert_idle()


def test_finishing_twice_does_nothing() -> None:
    driver = Driver()
    request = make_request(1, prompt_of(5))
    driver.add(request)
    driver.step()
    driver.end(request, FinishReason.ABORT)
    driver.scheduler.finish(request)
    driver.assert_idle()


def test_aborted_request_leaves_its_full_blocks_hittable() -> None:
    """Semantics 61."""
    driver = Driver()
    first, second = make_request(1, prompt_of(40)), make_request(2, prompt_of(40))
    driver.add(first)
    driver.step()
    driver.end(first, FinishReason.ABORT)
    driver.add(second)
    driver.step()
    assert second.num_cached == 32


def test_request_is_known_once() -> None:
    driver = Driver()
    request = make_request(1, prompt_of(5))
    driver.add(request)
    with pytest.raises(IntegrityError, match="known already"):
        driver.add(request)


def test_19_blocks_of_a_step_in_flight_are_given_up_only_after_it() -> None:
    driver = Driver(num_blocks=4)
    request = make_request(1, prompt_of(40))
    driver.add(request)
    step = driver.plan()
    assert step is not None
    table = list(driver.cache.table(request))
    with pytest.raises(IntegrityError, match="in flight"):
        driver.scheduler.finish(request)
    assert list(driver.cache.table(request)) == table
    assert driver.cache.num_available == 1
    driver.run(step)
    driver.end(request, FinishReason.ABORT)
    assert driver.cache.num_available == 4
