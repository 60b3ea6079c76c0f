"""What is in a step: budget, chunks, admission, preemption."""

from __future__ import annotations

import pytest
from tests.engine.scheduling import Driver, expected, make_request, make_search, prompt_of, rows_of
from tests.fakes import BLOCK

from octavo.engine.beam_search import Turn
from octavo.engine.request import Request, Status


def test_26_a_step_keeps_to_its_budget_and_mixes_decodes_with_chunks() -> None:
    """Semantics 26."""
    driver = Driver(max_batched_tokens=64, long_prefill_tokens=64)
    driver.add(make_request(1, prompt_of(10)))
    assert rows_of(driver.step()) == [(1, 0, 10)]
    driver.add(make_request(2, prompt_of(100, 2)), make_request(3, prompt_of(5, 3)))
    assert rows_of(driver.step()) == [(1, 10, 1), (2, 0, 63)]
    assert rows_of(driver.step()) == [(1, 11, 1), (2, 63, 37), (3, 0, 5)]


def test_27_decodes_get_their_token_although_a_prefill_comes_before_them() -> None:
    """Semantics 27: a running prefill of higher rank leaves a token for each one behind it."""
    driver = Driver(max_batched_tokens=32, long_prefill_tokens=32)
    decodes = [make_request(i, prompt_of(3, i), max_tokens=9) for i in (5, 6)]
    driver.add(*decodes)
    driver.step()
    driver.add(make_request(1, prompt_of(100, 1), arrival=0.0))
    assert rows_of(driver.step()) == [(5, 3, 1), (6, 3, 1), (1, 0, 30)]
    assert rows_of(driver.step()) == [(1, 30, 30), (5, 4, 1), (6, 4, 1)]


def test_28_chunk_is_capped_only_beside_others() -> None:
    """Semantics 28."""
    driver = Driver(max_batched_tokens=64, long_prefill_tokens=16)
    driver.add(make_request(1, prompt_of(150)))
    assert rows_of(driver.step()) == [(1, 0, 64)]
    driver.add(make_request(2, prompt_of(150, 2)))
    assert rows_of(driver.step()) == [(1, 64, 16), (2, 0, 16)]


def test_28_only_the_last_chunk_samples() -> None:
    """Semantics 28."""
    driver = Driver(max_batched_tokens=32)
    driver.add(make_request(1, prompt_of(70)))
    samples = []
    for _ in range(3):
        step = driver.step()
        assert step is not None
        samples.append(len(step.rows[0].samples))
    assert samples == [0, 0, 1]


def test_29_waiting_request_that_cannot_be_allocated_stops_admission() -> None:
    """Semantics 29: first come, first served; the small one does not overtake."""
    driver = Driver(num_blocks=4)
    first = make_request(1, prompt_of(33), max_tokens=6)
    large, small = make_request(2, prompt_of(40, 2)), make_request(3, prompt_of(5, 3))
    driver.add(first, large, small)
    assert rows_of(driver.step()) == [(1, 0, 33)]
    assert rows_of(driver.step()) == [(1, 33, 1)]
    driver.finish_all()
    assert large.first_scheduled == small.first_scheduled


def test_30_nothing_is_admitted_in_a_step_with_a_preemption() -> None:
    """Semantics 30."""
    driver = Driver(num_blocks=4, long_prefill_tokens=64)
    old, young = make_request(1, prompt_of(32)), make_request(2, prompt_of(17, 2))
    driver.add(old, young)
    driver.step()
    tiny = make_request(3, prompt_of(3, 3), arrival=1.5)
    driver.add(tiny)
    # The old one takes one of the young one's two blocks; the other would do for tiny.
    assert rows_of(driver.step()) == [(1, 32, 1)]
    assert young.status is Status.PREEMPTED
    assert tiny.status is Status.WAITING
    driver.finish_all()
    driver.assert_idle()


def test_31_whole_prompt_must_fit_at_admission_even_if_its_first_chunk_would() -> None:
    """Semantics 31."""
    driver = Driver(num_blocks=6, max_batched_tokens=32, long_prefill_tokens=16)
    driver.add(make_request(1, prompt_of(40), max_tokens=2), make_request(2, prompt_of(60, 2)))
    assert rows_of(driver.step()) == [(1, 0, 16)]
    driver.step()
    assert driver.scheduler.num_waiting == 1
    driver.finish_all()


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, 2), (0.2, 1)])
def test_31_watermark_is_kept_free_beside_others(watermark: float, admitted: int) -> None:
    """Semantics 31."""
    driver = Driver(num_blocks=10, watermark=watermark)
    driver.add(make_request(1, prompt_of(80)), make_request(2, prompt_of(64, 2)))
    driver.finish_all()
    driver.add(make_request(3, prompt_of(80, 3)), make_request(4, prompt_of(64, 4)))
    driver.step()
    driver.step()
    assert driver.scheduler.num_running == admitted


def test_31_watermark_does_not_keep_a_lone_request_out() -> None:
    """Semantics 31."""
    driver = Driver(num_blocks=4, watermark=0.5)
    request = make_request(1, prompt_of(60))
    driver.add(request)
    driver.finish_all()
    assert request.output_ids == expected(request)


def test_32_request_that_does_not_fit_alone_is_rejected_and_the_next_one_served() -> None:
    """Semantics 32, case 26: validation refuses it; should it come through, nothing stalls."""
    driver = Driver(num_blocks=3)
    large, short = make_request(1, prompt_of(49)), make_request(2, prompt_of(5, 2))
    driver.add(large, short)
    driver.finish_all()
    assert driver.errors == {1: "request_never_fits"}
    assert short.output_ids == expected(short)
    driver.assert_idle()


def test_37_lone_request_that_outgrows_the_pool_is_rejected() -> None:
    """Semantics 32, 37: preempting it would only make it grow again; a clear error, no crash."""
    driver = Driver(num_blocks=2)
    request, other = make_request(1, prompt_of(20), max_tokens=40), make_request(2, [1])
    driver.add(request, other)
    driver.finish_all()
    assert driver.errors == {1: "request_never_fits"}
    assert len(request.output_ids) == 13
    assert other.output_ids == expected(other)
    driver.assert_idle()


def test_rejected_group_goes_with_its_siblings() -> None:
    driver = Driver(num_blocks=2)
    driver.add(make_request(1, prompt_of(40), n=3))
    driver.finish_all()
    assert driver.errors == {1: "request_never_fits"}
    driver.assert_idle()


def test_choices_that_all_outgrow_the_pool_are_rejected_together() -> None:
    """A rejection empties the pool, so whoever was preempted before it gets its turn at once."""
    driver = Driver(num_blocks=2)
    driver.add(make_request(1, prompt_of(32), n=2))
    driver.step()
    driver.step()
    assert sorted(driver.errors) == [1, 2]
    driver.assert_idle()


def test_33_victim_is_the_last_in_order_and_resumes_where_it_was() -> None:
    """Semantics 33, 34: no token twice, none missing, the order by arrival kept."""
    driver = Driver(num_blocks=5, max_batched_tokens=128)
    requests = [make_request(i, prompt_of(14, i), max_tokens=30) for i in (1, 2, 3)]
    driver.add(*requests)
    seen: list[Request] = []
    while driver.scheduler.has_work():
        driver.step()
        seen += [r for r in requests if r.status is Status.PREEMPTED and r not in seen]
    assert seen == [requests[2], requests[1]]
    assert requests[0].num_preemptions == 0
    for request in requests:
        assert request.output_ids == expected(request)
    driver.assert_idle()


def test_35_victims_have_no_row_so_the_whole_budget_is_used() -> None:
    driver = Driver(num_blocks=5, max_batched_tokens=20, long_prefill_tokens=20)
    old = make_request(1, prompt_of(31), max_tokens=20)
    young = make_request(2, prompt_of(31, 2), max_tokens=9)
    driver.add(old, young)
    while not young.num_preemptions:
        step = driver.step()
    assert [id_ for id_, _, _ in rows_of(step)] == [1]
    assert young.status is Status.PREEMPTED


def test_34_preempted_request_goes_before_later_arrivals() -> None:
    """Semantics 34."""
    driver = Driver(num_blocks=4)
    old, young = make_request(1, prompt_of(32), max_tokens=8), make_request(2, prompt_of(17, 2))
    driver.add(old, young)
    driver.step()
    driver.add(make_request(3, prompt_of(3, 3)))
    driver.step()
    assert young.status is Status.PREEMPTED
    order = [r.id for r in driver.scheduler._roster.waiting]
    assert order == [2, 3]
    driver.finish_all()


def test_34_blocks_of_a_preempted_request_stay_hittable() -> None:
    """Semantics 34; 9 for the counters."""
    driver = Driver(num_blocks=6, max_batched_tokens=128, long_prefill_tokens=128)
    old = make_request(1, prompt_of(48), max_tokens=2)
    young = make_request(2, prompt_of(48, 2), max_tokens=2)
    driver.add(old, young)
    driver.step()
    driver.step()
    assert young.num_preemptions == 1
    driver.step()
    assert young.num_computed > 0
    assert driver.cache.preempted_hits == 32
    assert driver.cache.hits == young.num_cached == 0
    driver.finish_all()


@pytest.mark.parametrize("lack", ["slots", "blocks"])
def test_33_waiting_request_preempts_a_running_one_that_it_outranks(lack: str) -> None:
    driver = Driver(num_blocks=64 if lack == "slots" else 4, max_num_seqs=2)
    low = [make_request(i, prompt_of(20, i), max_tokens=20, priority=5) for i in (1, 2)]
    driver.add(*low)
    driver.step()
    high = make_request(3, prompt_of(20, 3), priority=1)
    driver.add(high)
    step = driver.step()
    # Admitted in the same step: it outranks the victim, whose place it takes.
    assert rows_of(step) == [(1, 20, 1), (3, 0, 20)]
    assert low[1].status is Status.PREEMPTED
    driver.finish_all()
    for request in (*low, high):
        assert request.output_ids == expected(request)
    driver.assert_idle()


def test_equal_priority_preempts_nobody() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(make_request(5, prompt_of(20), max_tokens=9))
    driver.step()
    driver.add(make_request(1, prompt_of(20, 1), arrival=0.0))
    assert rows_of(driver.step()) == [(5, 20, 1)]


def test_nobody_is_preempted_if_it_would_not_help() -> None:
    driver = Driver(num_blocks=6)
    high = make_request(1, prompt_of(60), max_tokens=3, priority=0)
    low = make_request(2, prompt_of(10, 2), max_tokens=9, priority=9)
    driver.add(high, low)
    driver.step()
    driver.step()
    driver.add(make_request(3, prompt_of(40, 3), priority=1))
    driver.step()
    assert low.num_preemptions == 0
    driver.finish_all()


def test_equals_are_spared_when_those_outranked_are_too_few() -> None:
    driver = Driver(max_num_seqs=2)
    equal = make_request(1, prompt_of(5), max_tokens=9, priority=1)
    low = make_request(2, prompt_of(5), max_tokens=9, priority=5)
    driver.add(equal, low)
    driver.step()
    driver.add(make_request(10, prompt_of(5), n=2, priority=1))
    assert [id_ for id_, _, _ in rows_of(driver.step())] == [1, 2]


def test_33_victims_and_admissions_follow_one_order() -> None:
    """Semantics 33 with priorities: the least important running one goes, not the latest."""
    driver = Driver(num_blocks=4)
    unimportant = make_request(1, prompt_of(17, 1), max_tokens=9, priority=7)
    important = make_request(2, prompt_of(32, 2), max_tokens=9, priority=3)
    driver.add(unimportant, important)
    driver.step()
    driver.step()
    assert unimportant.status is Status.PREEMPTED
    assert important.status is Status.RUNNING
    driver.finish_all()
    assert unimportant.output_ids == expected(unimportant)


def test_group_is_admitted_when_all_its_choices_have_slots() -> None:
    driver = Driver(max_num_seqs=4)
    single, group = make_request(1, prompt_of(5), max_tokens=3), make_request(10, [1, 2], n=4)
    driver.add(single, group)
    assert rows_of(driver.step()) == [(1, 0, 5)]
    driver.step()
    driver.step()
    assert rows_of(driver.step()) == [(10, 0, 2)]
    assert driver.scheduler.num_running == 4


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    """Semantics 10."""
    driver = Driver()
    requests = [make_request(i, prompt_of(40)) for i in (1, 2, 3)]
    driver.add(*requests)
    assert rows_of(driver.step()) == [(1, 0, 40), (2, 32, 8), (3, 32, 8)]
    driver.finish_all()
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]


def test_copies_of_a_fork_are_in_the_step() -> None:
    """Semantics 23: n - 1 copies of the partial block."""
    driver = Driver()
    group = make_request(1, prompt_of(20), n=4)
    choices = [group, *group.siblings]
    driver.add(group)
    driver.step()
    step = driver.step()
    assert step is not None
    assert len(step.copies) == 3
    assert len({source for source, _ in step.copies}) == 1
    driver.finish_all()
    assert [r.output_ids for r in choices] == [expected(r) for r in choices]
    driver.assert_idle()


def test_23_fork_at_a_block_boundary_copies_nothing() -> None:
    driver = Driver()
    driver.add(make_request(1, prompt_of(2 * BLOCK), n=3))
    driver.step()
    step = driver.step()
    assert step is not None
    assert step.copies == ()
    assert len({row.block_table[2] for row in step.rows}) == 3


def test_score_only_request_samples_nothing() -> None:
    driver = Driver(max_batched_tokens=32)
    driver.add(make_request(1, prompt_of(50), score_only=True, prompt_logprobs=0))
    steps = [driver.step(), driver.step()]
    assert all(s is not None and not s.rows[0].samples for s in steps)
    driver.assert_idle()


def prompt_positions(driver: Driver) -> list[int]:
    """Positions whose logprobs the steps so far have asked for."""
    asked: list[int] = []
    for step in driver.runner.steps:
        for row in step.rows:
            if row.prompt_logprobs is not None:
                end = min(row.start + len(row.token_ids), len(row.request.prompt_ids) - 1)
                asked += range(row.start + 1, end + 1)
    return asked


def test_prompt_logprobs_are_asked_for_each_position_once() -> None:
    driver = Driver(max_batched_tokens=24)
    driver.add(make_request(1, prompt_of(60), prompt_logprobs=2))
    driver.finish_all()
    assert prompt_positions(driver) == list(range(1, 60))


@pytest.mark.parametrize("steps_before", range(1, 8))
def test_prompt_logprobs_are_not_asked_for_again_after_a_preemption(steps_before: int) -> None:
    """Semantics 59: complete and without repetition, whenever the request loses its blocks."""
    driver = Driver(num_blocks=8, max_batched_tokens=24, long_prefill_tokens=20, max_num_seqs=1)
    request = make_request(1, prompt_of(60), prompt_logprobs=2, priority=5, max_tokens=6)
    driver.add(request)
    for _ in range(steps_before):
        driver.step()
    # While a third one waits chunks are smaller, so they end elsewhere than the first time.
    driver.add(make_request(2, prompt_of(30, 2), max_tokens=2))
    driver.add(make_request(3, prompt_of(3, 3), priority=9))
    driver.finish_all()
    assert request.num_preemptions == 1
    assert prompt_positions(driver) == list(range(1, 60))
    assert request.output_ids == expected(request)
    driver.assert_idle()


def start_search(driver: Driver, carrier: Request, tokens: tuple[int, ...]) -> None:
    """Computes the prompt and makes the first beams."""
    driver.add(carrier)
    while carrier.num_computed < carrier.num_tokens:
        step = driver.plan()
        assert step is not None
        driver.scheduler.commit(step)
    driver.scheduler.advance_beams(carrier, Turn(parents=(0,) * len(tokens), tokens=tokens))


def test_all_beams_get_a_row_in_one_step_and_a_prefill_leaves_room_for_them() -> None:
    """Semantics 27."""
    driver = Driver(max_batched_tokens=32, long_prefill_tokens=32)
    carrier, beams = make_search(20, prompt_of(10), arrival=9.0)
    start_search(driver, carrier, (1, 2, 3))
    driver.add(make_request(1, prompt_of(100, 1), arrival=0.0))
    ids = [beam.id for beam in beams.live]
    step = driver.plan()
    assert rows_of(step) == [*((id_, 10, 1) for id_ in ids), (1, 0, 29)]
    assert step is not None
    assert [len(row.samples) for row in step.rows] == [1, 1, 1, 0]
    assert len(step.copies) == 2
    driver.scheduler.commit(step)
    driver.scheduler.advance_beams(carrier, Turn(parents=(0, 1, 2), tokens=(1, 2, 3)))
    assert rows_of(driver.plan()) == [(1, 29, 29), *((id_, 11, 1) for id_ in ids)]


def test_25_room_is_made_for_all_beams_or_for_none() -> None:
    """Semantics 25: a group that lacks one block goes as a whole."""
    driver = Driver(num_blocks=6, prefix_caching=False)
    carrier, beams = make_search(20, prompt_of(BLOCK - 1), arrival=9.0)
    other = make_request(1, prompt_of(BLOCK, 1), arrival=0.0, max_tokens=60)
    driver.add(other)
    driver.step()
    start_search(driver, carrier, (1, 2, 3))
    step = driver.plan()  # into the block of the prompt
    assert step is not None
    driver.scheduler.commit(step)
    driver.scheduler.advance_beams(carrier, Turn(parents=(0, 1, 2), tokens=(1, 2, 3)))
    assert driver.cache.num_available == 1
    assert driver.plan() is None  # into a block each, for one of which there is room
    assert (carrier.status, other.status) == (Status.PREEMPTED, Status.RUNNING)
    assert all(len(beam.output_ids) == 2 for beam in beams.live)


def test_beams_that_lost_their_blocks_catch_up_before_all_are_sampled_together() -> None:
    driver = Driver(max_batched_tokens=16, long_prefill_tokens=16, prefix_caching=False)
    carrier, beams = make_search(20, prompt_of(10), width=2)
    start_search(driver, carrier, (1, 2))
    for beam in beams.live:
        beam.output_ids += [5] * 11
    driver.scheduler._roster.preempt(carrier, 1.0)
    rows = []
    for _ in range(4):
        step = driver.plan()
        assert step is not None
        rows.append(rows_of(step))
        driver.scheduler.commit(step)
        last_samples = [len(row.samples) for row in step.rows]
    assert last_samples == [1, 1]
    first, second = (beam.id for beam in beams.live)
    assert rows == [
        [(20, 0, 10)],
        [(first, 10, 11), (second, 10, 5)],
        [(second, 15, 6)],
        [(first, 21, 1), (second, 21, 1)],
    ]
