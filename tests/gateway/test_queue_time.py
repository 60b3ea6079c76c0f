from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.queue_time import DEFAULT_OUTPUT_TOKENS, Queue, queue_s, share_in_use

ROOMY = Queue(
    places=64,
    num_blocks=4096,
    free_blocks=4096,
    block_tokens=16,
    prefill_s_per_token=0.001,
    decode_s_per_step=0.02,
)


def queue(**fields: int) -> Queue:
    return replace(ROOMY, **fields)


def test_what_runs_keeps_nobody_waiting_while_there_is_a_place() -> None:
    assert queue_s(queue(running=24), 100.0) == 0.0
    assert queue_s(queue(running=63), 100.0) == 0.0


def test_each_that_waits_for_a_place_takes_the_end_of_another_request() -> None:
    # 16 at once, 20 s each: one ends every 1.25 s, and it is the sixty-first in the queue.
    full = queue(places=16, running=16, waiting=60, queued_tokens=3000)
    assert queue_s(full, 20.0) == pytest.approx(61 * 20 / 16)


def test_a_full_engine_lets_the_next_one_in_when_one_ends() -> None:
    assert queue_s(queue(running=64), 32.0) == pytest.approx(0.5)
    assert queue_s(queue(places=1, running=1), 20.0) == pytest.approx(20.0)


def test_prompts_are_computed_before_it() -> None:
    assert queue_s(queue(running=3, waiting=4, queued_tokens=5000), 20.0) == pytest.approx(5.0)


def test_prompts_are_computed_while_one_waits_for_a_place() -> None:
    full = queue(places=16, running=16, waiting=15, queued_tokens=30_000)
    assert queue_s(full, 16.0) == pytest.approx(30.0)
    assert queue_s(full, 48.0) == pytest.approx(48.0)


def test_blocks_are_waited_for_however_many_places_are_free() -> None:
    # Ten run and 2,000 prompt tokens wait: 125 blocks.
    held_up = queue(running=10, waiting=20, queued_tokens=2000, waiting_tokens=2000, free_blocks=0)
    assert queue_s(held_up, 20.0) == pytest.approx(21 * 20 / 10)
    assert queue_s(replace(held_up, free_blocks=124), 20.0) == pytest.approx(2 * 20 / 10)
    assert queue_s(replace(held_up, free_blocks=125), 20.0) == pytest.approx(2.0)


def test_blocks_that_a_prompt_has_which_is_being_computed_are_not_waited_for() -> None:
    """A prompt has blocks for all of its tokens from the start; 100 tokens wait beside it."""
    long = queue(running=1, waiting=1, queued_tokens=30_100, waiting_tokens=100, free_blocks=173)
    assert queue_s(replace(long, prefill_s_per_token=50e-6), 20.0) == pytest.approx(1.505)


def test_blocks_that_are_used_up_keep_nobody_waiting_who_does_not_wait() -> None:
    assert queue_s(queue(running=10, free_blocks=0), 20.0) == 0.0


def test_a_burst_at_an_idle_engine_takes_its_places_at_once() -> None:
    assert queue_s(queue(waiting=63), 20.0) == 0.0
    assert queue_s(queue(waiting=70), 20.0) == pytest.approx(7 * 20 / 64)


def test_before_any_answer_has_ended_a_length_is_taken_for_it() -> None:
    full = queue(places=16, running=16)
    assert queue_s(full, None) == pytest.approx(DEFAULT_OUTPUT_TOKENS * 0.02 / 16)
    unmeasured = Queue(places=16, running=16, queued_tokens=100)
    assert queue_s(unmeasured, None) == pytest.approx(DEFAULT_OUTPUT_TOKENS * 0.01 / 16)


def test_an_engine_that_does_not_tell_its_places_is_not_taken_to_be_full() -> None:
    assert queue_s(queue(places=0, running=500), 20.0) == 0.0


@pytest.mark.parametrize(
    ("found", "share"),
    [
        (queue(), 0.0),
        (queue(running=16), 0.25),
        (queue(running=16, free_blocks=1024), 0.75),
        (queue(running=64, waiting=32), 1.5),
        (queue(free_blocks=0), 0.0),
        (queue(running=16, num_blocks=100, free_blocks=120), 0.25),
        (queue(running=16, places=0, num_blocks=0), 0.0),
    ],
    ids=["idle", "places", "blocks", "a queue", "nothing runs", "pins unused", "not told"],
)
def test_what_is_in_use_is_places_or_blocks(found: Queue, share: float) -> None:
    assert share_in_use(found) == pytest.approx(share)


@given(
    st.integers(0, 64), st.integers(0, 100), st.integers(0, 10_000), st.integers(0, 10_000),
    st.integers(0, 500), st.floats(0.01, 100),
)  # fmt: skip
def test_one_more_in_the_queue_never_shortens_it(
    running: int, waiting: int, tokens: int, computing: int, free_blocks: int, place_s: float
) -> None:
    found = queue(
        running=running,
        waiting=waiting,
        queued_tokens=tokens + computing,
        waiting_tokens=tokens,
        free_blocks=free_blocks,
    )
    longer = replace(
        found,
        waiting=waiting + 1,
        queued_tokens=found.queued_tokens + 50,
        waiting_tokens=tokens + 50,
    )
    assert 0.0 <= queue_s(found, place_s) <= queue_s(longer, place_s) + 1e-9


@given(
    st.integers(0, 63), st.integers(0, 100), st.integers(0, 10_000), st.integers(0, 10_000),
    st.integers(0, 500), st.floats(0.01, 100),
)  # fmt: skip
def test_prompts_that_have_their_blocks_cost_the_time_to_compute_them_and_no_blocks(
    running: int, waiting: int, tokens: int, computing: int, free_blocks: int, place_s: float
) -> None:
    alone = queue(
        running=running,
        waiting=waiting,
        queued_tokens=tokens,
        waiting_tokens=tokens,
        free_blocks=free_blocks,
    )
    beside = replace(alone, queued_tokens=tokens + computing)
    compute_s = beside.queued_tokens * beside.prefill_s_per_token
    assert queue_s(beside, place_s) == max(compute_s, queue_s(alone, place_s))
