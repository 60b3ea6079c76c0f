"""Beam search through the core: what is told, what it holds, and what disturbs it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.engine.beams import EARLY, beam, found, wanted
from tests.engine.harness import Engine, generate
from tests.fakes import BLOCK, EOS, FakeRunner, expected_output

from octavo.engine.batch import StepInput
from octavo.engine.beam_search import EarlyStopping
from octavo.engine.core import Ticket
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.request import Status
from octavo.v1 import common_pb2
from octavo.v1.errors import NEVER_FITS, REQUEST_FAILED, OctavoError

STOP = common_pb2.FINISH_REASON_STOP
LENGTH = common_pb2.FINISH_REASON_LENGTH
ERROR = common_pb2.FINISH_REASON_ERROR


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 7919 + i * 31) % 256 for i in range(length)]


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("penalty", [None, 0.0, 2.0])
@pytest.mark.parametrize("early", EarlyStopping)
def test_choices_are_the_best_sequences_and_come_at_the_end(
    caching: bool, penalty: float | None, early: EarlyStopping
) -> None:
    """Semantics 24."""
    engine = Engine(prefix_caching=caching)
    proto = beam(prompt_of(37), 4, penalty=penalty, n=3, max_tokens=30)
    proto.beam.early_stopping = EARLY[early]
    ticket = engine.submit(proto)
    engine.run()
    assert found(engine, ticket) == wanted(proto)
    deltas = engine.deltas[ticket]
    first, *ends = deltas
    assert (first.choice, first.cached_tokens, len(first.token_ids)) == (0, 0, 0)
    assert not first.finish_reason
    assert [d.choice for d in ends] == [0, 1, 2]
    for delta in ends:
        is_eos = delta.token_ids[-1] == EOS
        assert delta.finish_reason == (STOP if is_eos else LENGTH)
        shown = bytes(token for token in delta.token_ids if token != EOS)
        assert delta.text == shown.decode(errors="replace")
    usage = ends[-1].usage
    assert not ends[0].HasField("usage")
    assert (usage.prompt_tokens, usage.preemptions) == (37, 0)
    assert usage.output_tokens == sum(len(d.token_ids) for d in ends)
    assert usage.prefill_ms > 0.0
    assert usage.decode_ms > 0.0
    engine.assert_idle()


def test_prompt_is_computed_once_and_beams_share_what_they_have_in_common() -> None:
    """Semantics 24: reparenting moves no bytes, and a step takes at most `width` blocks."""
    width, engine = 4, Engine()
    blocks: list[int] = []
    proto = beam(prompt_of(100), width, max_tokens=40, ignore_eos=True, request_id="a")
    ticket = engine.submit(proto)
    while engine.core.num_open:
        engine.step()
        blocks.append(engine.cache.num_allocatable - engine.cache.num_available)
    assert sum(s.num_tokens for s in engine.runner.steps) <= 100 + width * 39
    assert max(after - before for before, after in pairwise(blocks)) <= width
    assert max(blocks) <= 100 // BLOCK + width * -(-(100 % BLOCK + 39) // BLOCK)
    copies = [len(step.copies) for step in engine.runner.steps]
    assert copies[:3] == [0, 0, width - 1]  # two chunks, then the block that the prompt began
    assert max(copies) < width
    assert found(engine, ticket) == wanted(proto, EOS + 100)
    engine.assert_idle()


def test_cached_prompt_is_hit_and_told_before_the_end() -> None:
    engine = Engine()
    for hit in (0, 32):
        ticket = engine.submit(beam(prompt_of(40)))
        engine.run()
        first, last = engine.deltas[ticket][0], engine.deltas[ticket][-1]
        assert (first.cached_tokens, last.usage.cached_tokens) == (hit, hit)
    engine.assert_idle()


def test_stop_ids_end_a_sequence_as_eos_does_and_are_told() -> None:
    engine = Engine()
    stops = [*range(40, 60), EOS]
    proto = beam(prompt_of(20), 3, max_tokens=20)
    proto.stop.token_ids.extend(stops[:-1])
    ticket = engine.submit(proto)
    engine.run()
    assert found(engine, ticket) == wanted(proto, *stops)
    for choice in ticket.choices:
        last = engine.last(ticket, choice.index)
        assert last.finish_reason == STOP
        token = last.token_ids[-1]
        assert last.HasField("stop_token_id") == (token != EOS)
        assert token in (EOS, last.stop_token_id)
        assert len(last.text) <= len(last.token_ids) - 1
    engine.assert_idle()


def test_resumed_choices_are_found_by_the_whole_search_again() -> None:
    """What another engine had told is not told again; the outcome is the same."""
    engine = Engine()
    proto = beam(prompt_of(20), 4)
    for choice in (1, 3):
        proto.resumes.add(choice=choice)
    ticket = engine.submit(proto)
    engine.run()
    best = wanted(proto)
    assert [c.index for c in ticket.choices] == [1, 3]
    assert found(engine, ticket) == [best[1], best[3]]
    assert engine.deltas[ticket][-1].HasField("usage")
    engine.assert_idle()


def test_too_few_possible_sequences_fail_the_request() -> None:
    engine = Engine(runner=FakeRunner(mask=lambda request: request.carrier is not None))
    ticket = engine.submit(beam(prompt_of(20), 3, max_tokens=9))
    other = engine.submit(generate(prompt_of(5), seed=1, max_tokens=9, request_id="o"))
    engine.run()
    for choice in ticket.choices:
        last = engine.last(ticket, choice.index)
        assert last.finish_reason == ERROR
        assert last.error.param == "allowed_token_ids"
    assert engine.ids(other) == expected_output(prompt_of(5), 1, 9)
    engine.assert_idle()


def test_logits_that_are_not_finite_fail_the_whole_search_and_nobody_else() -> None:
    def poison(request: object) -> bool:
        return len(getattr(request, "output_ids", ())) == 4 and getattr(request, "index", 1) == 0

    engine = Engine(runner=FakeRunner(poison=poison))
    ticket = engine.submit(beam(prompt_of(40), 3, ignore_eos=True))
    engine.run()
    assert {engine.last(ticket, i).error.code for i in range(3)} == {REQUEST_FAILED.code}
    engine.assert_idle()


def test_abort_leaves_nothing_at_any_time() -> None:
    """Semantics 61."""
    for steps in range(12):
        engine = Engine(max_batched_tokens=16, long_prefill_tokens=16)
        ticket = engine.submit(beam(prompt_of(60), 4, ignore_eos=True))
        for _ in range(steps):
            engine.step()
        assert len(engine.core.abort(ticket)) == 4
        engine.assert_idle()


def test_deadline_leaves_nothing() -> None:
    engine = Engine(clock=iter(i * 0.01 for i in range(10**6)).__next__)
    ticket = engine.submit(beam(prompt_of(60), 4, ignore_eos=True, remaining_ms=100))
    engine.run()
    assert {engine.last(ticket, i).finish_reason for i in range(4)} == {ERROR}
    engine.assert_idle()


def test_lone_search_whose_step_breaks_fails_and_others_go_on() -> None:
    def break_it(step: StepInput) -> None:
        if any(len(row.request.output_ids) == 5 and row.request.carrier for row in step.rows):
            raise RuntimeError("broken")

    engine = Engine(runner=FakeRunner(before=break_it))
    ticket = engine.submit(beam(prompt_of(40), 3, ignore_eos=True))
    other = engine.submit(generate(prompt_of(50), seed=3, max_tokens=30, request_id="o"))
    engine.run()
    assert {engine.last(ticket, i).finish_reason for i in range(3)} == {ERROR}
    assert engine.ids(other) == expected_output(prompt_of(50), 3, 30)
    engine.assert_idle()


@settings(max_examples=150)
@given(
    num_blocks=st.integers(15, 26),
    endless=st.booleans(),
    max_batched_tokens=st.sampled_from([16, 40, 64]),
    caching=st.booleans(),
    widths=st.lists(st.integers(2, 4), min_size=2, max_size=3),
    plain=st.integers(0, 3),
    failing=st.sets(st.integers(0, 60), max_size=4),
    lengths=st.lists(st.integers(1, 60) | st.just(47), min_size=6, max_size=6),
)
def test_preemption_and_failed_steps_change_nothing(
    num_blocks: int,
    endless: bool,
    max_batched_tokens: int,
    caching: bool,
    widths: list[int],
    plain: int,
    failing: set[int],
    lengths: list[int],
) -> None:
    """Semantics 25: the group goes and comes as one, with the outcome of an undisturbed run."""
    count = 0

    def break_some(step: StepInput) -> None:
        nonlocal count
        count += 1
        if count in failing and len({row.request.owner for row in step.rows}) > 1:
            raise RuntimeError("broken")

    engine = Engine(
        num_blocks=num_blocks,
        max_batched_tokens=max_batched_tokens,
        prefix_caching=caching,
        runner=FakeRunner(before=break_some),
    )
    searches = {}
    for i, width in enumerate(widths):
        proto = beam(
            prompt_of(lengths[i], i), width, request_id=f"b{i}", max_tokens=24, ignore_eos=endless
        )
        searches[engine.submit(proto)] = proto
    others = [
        engine.submit(
            generate(prompt_of(lengths[3 + i], i), seed=i, max_tokens=40, request_id=str(i))
        )
        for i in range(plain)
    ]
    engine.run()
    event(f"preemptions: {min(engine.scheduler.num_preemptions, 3)}")
    for ticket, proto in searches.items():
        assert found(engine, ticket) == wanted(proto, EOS + 100 if endless else EOS)
    for i, ticket in enumerate(others):
        assert engine.ids(ticket) == expected_output(prompt_of(lengths[3 + i], i), i, 40)
    engine.assert_idle()


def test_preempted_search_is_counted_once_and_starts_from_the_prompt() -> None:
    engine = Engine(num_blocks=20)
    low = engine.submit(beam(prompt_of(40), 4, ignore_eos=True, max_tokens=40, priority=1))
    for _ in range(20):
        engine.step()
    high = engine.submit(
        generate(prompt_of(200, 1), seed=1, max_tokens=60, priority=0, request_id="h")
    )
    engine.run()
    assert engine.last(low, 3).usage.preemptions == 1
    assert engine.scheduler.num_preemptions == 1
    proto = beam(prompt_of(40), 4, max_tokens=40)
    assert found(engine, low) == wanted(proto, EOS + 100)
    assert engine.ids(high) == expected_output(prompt_of(200, 1), 1, 60)
    engine.assert_idle()


def test_25_swapped_search_goes_on_where_it_was_and_its_beams_share_again() -> None:
    engine = Engine(num_blocks=20, host_slots=40, preemption=Preemption(mode=PreemptionMode.SWAP))
    low = engine.submit(beam(prompt_of(40), 4, ignore_eos=True, max_tokens=40, priority=1))
    for _ in range(20):
        engine.step()
    prompt, carrier = prompt_of(200, 1), low.choices[0].request
    high = engine.submit(generate(prompt, seed=1, max_tokens=60, request_id="h"))
    while not engine.scheduler.num_swaps:
        held = {block for beam in carrier.holders for block in engine.cache.table(beam)}
        engine.step()
    assert engine.cache.host.counts().used == len(held), "a shared block has one slot"
    engine.run()
    usage = engine.last(low, 3).usage
    assert (usage.preemptions, usage.swaps) == (1, 1)
    computed = sum(step.num_tokens for step in engine.runner.steps)
    assert computed == 40 + 4 * 39 + 200 + 59, "nothing twice"
    assert found(engine, low) == wanted(beam(prompt_of(40), 4, max_tokens=40), EOS + 100)
    assert engine.ids(high) == expected_output(prompt, 1, 60)
    engine.assert_idle()


def test_search_whose_swap_fails_begins_again() -> None:
    broken: list[int] = []

    def break_swap(step: StepInput) -> None:
        if step.offloads and not broken:
            broken.append(1)
            raise RuntimeError("broken")

    engine = Engine(
        num_blocks=20,
        host_slots=40,
        prefix_caching=False,
        preemption=Preemption(mode=PreemptionMode.SWAP),
        runner=FakeRunner(before=break_swap),
    )
    low = engine.submit(beam(prompt_of(40), 4, ignore_eos=True, max_tokens=40, priority=1))
    for _ in range(20):
        engine.step()
    first, second = prompt_of(100, 1), prompt_of(90, 2)
    for i, prompt in enumerate((first, second)):
        engine.submit(generate(prompt, seed=i, max_tokens=40, request_id=str(i)))
    engine.run()
    assert broken
    assert found(engine, low) == wanted(beam(prompt_of(40), 4, max_tokens=40), EOS + 100)
    engine.assert_idle()


@pytest.mark.parametrize("rivals", [1, 2])
def test_protected_search_in_a_pool_of_just_its_size_ends(rivals: int) -> None:
    """Its worst case is what it was let in with, not a block more."""
    swap = Preemption(mode=PreemptionMode.SWAP)
    engine = Engine(
        num_blocks=7, max_model_len=64, max_preemptions=1, host_slots=100, preemption=swap
    )
    search = beam(prompt_of(17), 2, max_tokens=47, ignore_eos=True)
    ticket = engine.submit(search)
    for _ in range(30):
        engine.step()
    for seed in range(rivals):
        prompt = prompt_of(20, seed)
        engine.submit(
            generate(prompt, max_tokens=13, ignore_eos=True, priority=-1, request_id=str(seed))
        )
        for _ in range(3):
            engine.step()
    engine.run()
    assert found(engine, ticket) == wanted(search, EOS + 100)
    engine.assert_idle()


def test_swapped_search_counts_no_hits_that_its_slots_do_not_know() -> None:
    """A poisoned request took the hashes of what is swapped; another one computed it again."""
    bad: list[int] = []
    prompt = prompt_of(6 * BLOCK + 1)
    engine = Engine(
        num_blocks=14,
        max_model_len=200,
        host_slots=100,
        max_preemptions=0,
        preemption=Preemption(mode=PreemptionMode.SWAP),
        runner=FakeRunner(poison=lambda r: r.sampling.seed in bad),
    )
    search = beam(prompt, 2, max_tokens=15, ignore_eos=True)
    ticket = engine.submit(search)
    for _ in range(6):
        engine.step()
    bad.append(77)
    engine.submit(generate(prompt, seed=77, max_tokens=3, ignore_eos=True, request_id="bad"))
    for _ in range(6):
        engine.step()
    longer = prompt + prompt_of(2 * BLOCK, 8)
    engine.submit(
        generate(longer, seed=5, max_tokens=30, ignore_eos=True, priority=-1, request_id="other")
    )
    engine.run()
    assert found(engine, ticket) == wanted(search, EOS + 100)
    engine.assert_idle()


def test_search_that_would_not_fit_beside_all_pins_is_refused() -> None:
    engine = Engine(num_blocks=20, max_model_len=64, pin_blocks=10)
    with pytest.raises(OctavoError) as refusal:
        engine.submit(beam(prompt_of(17), 6, max_tokens=47, ignore_eos=True))
    assert refusal.value.kind is NEVER_FITS
    engine.submit(beam(prompt_of(17), 3, max_tokens=47, ignore_eos=True))
    engine.run()
    engine.assert_idle()


class SwapOfLittle(Preemption):
    """Swaps what has computed little, and has the rest computed again."""

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        return num_tokens < 80


def test_search_swapped_while_it_catches_up_takes_no_block_of_whom_the_step_has() -> None:
    """Its beams write several blocks at once when it is back, before those that came after it."""

    def in_time(step: StepInput) -> None:
        assert all(row.request.owner.status is Status.RUNNING for row in step.rows)

    engine = Engine(
        num_blocks=10,
        host_slots=40,
        prefix_caching=False,
        scheduling_policy="shortest",
        ageing_s_per_token=1.0,
        preemption=SwapOfLittle(),
        runner=FakeRunner(before=in_time),
    )
    search = beam(prompt_of(15), 2, max_tokens=60, ignore_eos=True)
    ticket = engine.submit(search)
    carrier = ticket.choices[0].request
    asked: dict[Ticket, list[int]] = {}

    def ask(length: int, seed: int, max_tokens: int, priority: int) -> Ticket:
        prompt = prompt_of(length, seed)
        proto = generate(prompt, seed=seed, max_tokens=max_tokens, ignore_eos=True)
        proto.priority, proto.request_id = priority, str(seed)
        asked[one := engine.submit(proto)] = expected_output(prompt, seed, max_tokens)
        return one

    for _ in range(42):
        engine.step()
    first = ask(140, 1, 4, -1)  # so the search is computed again
    while first.open or not carrier.is_forked:
        engine.step()
    second = ask(140, 2, 4, -1)  # and swapped on its way, when one beam has caught up
    for _ in range(2):
        engine.step()
    assert carrier.num_swaps == 1
    ask(3, 3, 13, 0)  # runs before the search does, and comes after it in the order
    engine.step()
    ask(40, 4, 5, -1)
    while second.open:
        engine.step()
    engine.run()
    assert found(engine, ticket) == wanted(search, EOS + 100)
    assert {t: engine.ids(t) for t in asked} == asked
    engine.assert_idle()
