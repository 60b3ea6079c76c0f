"""The core on a fake runner whose tokens are a pure function of ids and seed."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.engine.harness import Engine, generate
from tests.fakes import EOS, FakeRunner, expected_output

from octavo.engine.batch import StepInput
from octavo.engine.planner import Planner
from octavo.engine.policy import Policy
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import CATALOGUE, OctavoError

STOP = common_pb2.FINISH_REASON_STOP
LENGTH = common_pb2.FINISH_REASON_LENGTH
ERROR = common_pb2.FINISH_REASON_ERROR


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 7919 + i * 31) % 256 for i in range(length)]


def test_tokens_do_not_depend_on_chunking_batch_or_cache() -> None:
    engine = Engine()
    prompts = [prompt_of(n, n) for n in (1, 15, 16, 17, 33, 100, 200)]
    tickets = [
        engine.submit(generate(p, seed=i, max_tokens=20, request_id=str(i)))
        for i, p in enumerate(prompts)
    ]
    engine.run()
    again = engine.submit(generate(prompts[-1], seed=6, max_tokens=20))
    engine.run()
    for i, (ticket, prompt) in enumerate(zip(tickets, prompts, strict=True)):
        assert engine.ids(ticket) == expected_output(prompt, i, 20)
    assert engine.ids(again) == expected_output(prompts[-1], 6, 20)
    assert engine.last(again).usage.cached_tokens == 192
    engine.assert_idle()


def test_34_preempted_requests_keep_their_tokens_positions_and_limits() -> None:
    """Semantics 34: nothing repeated, nothing missing, the same seed stream."""
    engine = Engine(num_blocks=10, max_batched_tokens=64)
    tickets = [
        engine.submit(generate(prompt_of(40, i), seed=i, max_tokens=60, request_id=str(i)))
        for i in range(4)
    ]
    engine.run()
    assert sum(engine.last(t).usage.preemptions for t in tickets) > 0
    for i, ticket in enumerate(tickets):
        assert engine.ids(ticket) == expected_output(prompt_of(40, i), i, 60)
        assert engine.last(ticket).finish_reason == LENGTH
    engine.assert_idle()


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
def test_choices_share_the_prompt_and_use_consecutive_seeds(caching: bool) -> None:
    """Semantics 46 and 23: choice i of seed s is choice 0 of seed s + i; the prompt is run once."""
    engine = Engine(prefix_caching=caching)
    ticket = engine.submit(generate(prompt_of(37), n=3, seed=7, max_tokens=12))
    engine.run()
    for i in range(3):
        assert engine.ids(ticket, i) == expected_output(prompt_of(37), 7 + i, 12)
    computed = sum(s.num_tokens for s in engine.runner.steps)
    assert computed == 37 + 3 * 11
    copies = [c for s in engine.runner.steps for c in s.copies]
    assert len(copies) == 2, "n choices copy the shared partial block n - 1 times"
    usage = [d.usage for d in engine.deltas[ticket] if d.HasField("usage")]
    assert [(u.prompt_tokens, u.output_tokens) for u in usage] == [(37, 36)]
    engine.assert_idle()


def test_07_cached_tokens_are_whole_blocks_before_the_last_token() -> None:
    """Case 36 and semantics 7: floor((len - 1) / B) * B, each prompt sent three times."""
    for length in (15, 16, 17, 31, 32, 33):
        engine = Engine()
        cached = []
        for _ in range(3):
            ticket = engine.submit(generate(prompt_of(length), seed=1, max_tokens=4))
            engine.run()
            assert engine.ids(ticket) == expected_output(prompt_of(length), 1, 4)
            cached.append(engine.last(ticket).usage.cached_tokens)
            told = [d.cached_tokens for d in engine.deltas[ticket] if d.HasField("cached_tokens")]
            assert told == [cached[-1]]
            assert engine.deltas[ticket][0].HasField("cached_tokens")
        assert cached == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]


def test_written_tokens_are_those_of_full_blocks_that_were_not_cached() -> None:
    for length in (15, 16, 17, 40):
        engine = Engine(max_batched_tokens=16)
        full, cached = length // 16 * 16, (length - 1) // 16 * 16
        for written in (full, full - cached):
            ticket = engine.submit(generate(prompt_of(length), seed=1, max_tokens=40))
            engine.run()
            assert engine.last(ticket).usage.cache_write_tokens == written
    engine = Engine(prefix_caching=False)
    ticket = engine.submit(generate(prompt_of(40), max_tokens=1))
    engine.run()
    assert engine.last(ticket).usage.cache_write_tokens == 0


def test_written_tokens_are_counted_once_however_often_they_are_computed() -> None:
    engine = Engine(num_blocks=10)
    tickets = [
        engine.submit(generate(prompt_of(40, i), seed=i, max_tokens=60, request_id=str(i)))
        for i in range(4)
    ]
    engine.run()
    assert sum(engine.last(t).usage.preemptions for t in tickets) > 0
    assert [engine.last(t).usage.cache_write_tokens for t in tickets] == [32] * 4


def test_03_salted_requests_do_not_share_the_cache() -> None:
    engine = Engine()
    for salt, cached in (("", 0), ("a", 0), ("a", 48), ("b", 0), ("", 48)):
        ticket = engine.submit(generate(prompt_of(50), cache_salt=salt, max_tokens=1))
        engine.run()
        assert engine.last(ticket).usage.cached_tokens == cached, salt


def scripted(*tokens: int) -> FakeRunner:
    """A model that says these tokens after any prompt of four tokens."""
    return FakeRunner(token=lambda ids, _seed: tokens[len(ids) - 4])


PROMPT = prompt_of(4)


def test_45_end_of_sequence_as_the_last_allowed_token_is_a_stop() -> None:
    """Semantics 45: EOS wins over length; it is counted but not shown (54)."""
    engine = Engine(runner=scripted(65, 66, EOS))
    ticket = engine.submit(generate(PROMPT, max_tokens=3))
    engine.run()
    last = engine.last(ticket)
    assert (last.finish_reason, last.WhichOneof("stop_reason")) == (STOP, None)
    assert engine.ids(ticket) == [65, 66, EOS]
    assert engine.text(ticket) == "AB"
    assert last.usage.output_tokens == 3


def test_ignore_eos_runs_to_the_length() -> None:
    engine = Engine(runner=scripted(65, EOS, 66))
    ticket = engine.submit(generate(PROMPT, max_tokens=3, ignore_eos=True))
    engine.run()
    assert engine.last(ticket).finish_reason == LENGTH
    assert engine.ids(ticket) == [65, EOS, 66]


def test_54_stop_token_is_reported_and_hidden_unless_asked_for() -> None:
    for include, text in ((False, "A"), (True, "AB")):
        engine = Engine(runner=scripted(65, 66, 67))
        ticket = engine.submit(_with_stop_id(66, include))
        engine.run()
        last = engine.last(ticket)
        assert (last.finish_reason, last.stop_token_id) == (STOP, 66)
        assert engine.ids(ticket) == [65, 66]
        assert engine.text(ticket) == text


def _with_stop_id(token: int, include: bool) -> engine_pb2.GenerateRequest:
    proto = generate(PROMPT, max_tokens=3)
    proto.stop.token_ids.append(token)
    proto.stop.include_in_output = include
    return proto


def test_56_stop_string_is_never_sent_and_ends_the_choice() -> None:
    engine = Engine(runner=scripted(*b"hello END more"))
    ticket = engine.submit(generate(PROMPT, max_tokens=14, strings=["END", "never"]))
    engine.run()
    last = engine.last(ticket)
    assert (last.finish_reason, last.stop_string) == (STOP, "END")
    assert engine.text(ticket) == "hello "
    assert len(engine.ids(ticket)) == len(b"hello END")
    engine.assert_idle()


def test_44_stop_strings_wait_for_min_tokens() -> None:
    engine = Engine(runner=scripted(*b"ENDxEND"))
    ticket = engine.submit(generate(PROMPT, max_tokens=7, min_tokens=5, strings=["END"]))
    engine.run()
    assert engine.text(ticket) == "ENDx"
    assert engine.last(ticket).stop_string == "END"


@pytest.mark.parametrize(
    ("tokens", "fields", "reason", "stop"),
    [
        ([65, EOS], {"token_ids_of_stop": [EOS]}, STOP, None),
        ([65, 66], {"token_ids_of_stop": [66]}, STOP, 66),
        ([65, 66], {"token_ids_of_stop": [66], "strings": ["B"]}, STOP, 66),
        ([65, 66], {"strings": ["AB"]}, STOP, "AB"),
        ([65, 66], {}, LENGTH, None),
    ],
    ids=["end of sequence first", "then stop ids", "before strings", "then strings", "then length"],
)
def test_45_what_the_last_allowed_token_means_has_an_order(
    tokens: list[int], fields: dict[str, Any], reason: int, stop: int | str | None
) -> None:
    proto = generate(PROMPT, max_tokens=2, strings=fields.get("strings", []))
    proto.stop.token_ids.extend(fields.get("token_ids_of_stop", []))
    engine = Engine(runner=scripted(*tokens))
    ticket = engine.submit(proto)
    engine.run()
    last = engine.last(ticket)
    kind = last.WhichOneof("stop_reason")
    assert (last.finish_reason, getattr(last, kind) if kind else None) == (reason, stop)


def test_46_the_second_choice_is_the_first_of_the_next_seed() -> None:
    engine = Engine()
    both = engine.submit(generate(PROMPT, n=2, seed=7, max_tokens=12, request_id="both"))
    next_seed = engine.submit(generate(PROMPT, seed=8, max_tokens=12, request_id="next"))
    engine.run()
    assert engine.ids(both, 1) == engine.ids(next_seed)


def test_52_ids_logprobs_and_usage_end_with_the_token_that_completes_the_stop() -> None:
    engine = Engine(runner=scripted(*b"hello END more"))
    ticket = engine.submit(generate(PROMPT, max_tokens=14, logprobs=0, strings=["END"]))
    engine.run()
    count = len(b"hello END")
    assert len(engine.ids(ticket)) == count
    assert sum(len(d.logprobs) for d in engine.deltas[ticket]) == count
    assert engine.last(ticket).usage.output_tokens == count


def test_58_a_token_without_text_has_its_logprob_entry() -> None:
    engine = Engine(runner=scripted(65, EOS, 66, EOS))
    proto = generate(PROMPT, max_tokens=4, logprobs=0, ignore_eos=True)
    ticket = engine.submit(proto)
    engine.run()
    assert engine.text(ticket) == "AB"
    told = [p.candidates[0].token_id for d in engine.deltas[ticket] for p in d.logprobs]
    assert told == engine.ids(ticket) == [65, EOS, 66, EOS]


def test_60_usage_counts_the_prompt_once_and_every_choice_with_its_stop_token() -> None:
    engine = Engine(runner=FakeRunner(token=lambda ids, seed: EOS if len(ids) - 4 == seed else 65))
    ticket = engine.submit(generate(PROMPT, n=3, seed=1, max_tokens=9))
    engine.run()
    (usage,) = [d.usage for d in engine.deltas[ticket] if d.HasField("usage")]
    assert [len(engine.ids(ticket, i)) for i in range(3)] == [2, 3, 4]
    assert (usage.prompt_tokens, usage.output_tokens) == (4, 9)


def test_61_an_abort_touches_no_neighbour() -> None:
    engine = Engine(num_blocks=12)
    prompt = prompt_of(40)
    asked = [
        engine.submit(generate(prompt, seed=i, max_tokens=30, request_id=str(i))) for i in range(3)
    ]
    for _ in range(5):
        engine.step()
    engine.core.abort(asked[1])
    engine.scheduler.check_integrity()
    engine.run()
    for i in (0, 2):
        assert engine.ids(asked[i]) == expected_output(prompt, i, 30)
    engine.assert_idle()


def test_a_step_that_raises_fails_only_the_request_that_raises_alone() -> None:
    """Reliability 1.6: nothing of the step is published, neighbours start over unharmed."""
    bad = prompt_of(20, 99)

    def explode(step: StepInput) -> None:
        if any(list(r.request.prompt_ids) == bad for r in step.rows):
            raise RuntimeError("boom")

    engine = Engine(runner=FakeRunner(before=explode))
    good = [
        engine.submit(generate(prompt_of(20, i), seed=i, max_tokens=10, request_id=str(i)))
        for i in range(3)
    ]
    poison = engine.submit(generate(bad, max_tokens=10, request_id="bad"))
    engine.run()
    for i, ticket in enumerate(good):
        assert engine.ids(ticket) == expected_output(prompt_of(20, i), i, 10)
    last = engine.last(poison)
    assert last.finish_reason == ERROR
    assert CATALOGUE[last.error.code].name == "request_failed"
    assert engine.ids(poison) == []
    engine.assert_idle()


def test_logits_that_are_not_finite_fail_one_request_and_publish_none_of_its_blocks() -> None:
    bad = tuple(prompt_of(40, 5))
    runner = FakeRunner(poison=lambda r: r.prompt_ids == bad)
    engine = Engine(runner=runner)
    good = engine.submit(generate(prompt_of(40, 6), seed=1, max_tokens=5, request_id="a"))
    poison = engine.submit(generate(bad, max_tokens=5, request_id="b"))
    engine.run()
    assert engine.ids(good) == expected_output(prompt_of(40, 6), 1, 5)
    assert engine.last(poison).finish_reason == ERROR
    retry = engine.submit(generate(bad, max_tokens=1))
    engine.run()
    # The first chunk of 32 was computed in a step of its own that succeeded.
    assert engine.last(retry).usage.cached_tokens <= 32
    engine.assert_idle()


def test_a_request_that_leaves_no_token_fails_alone_and_keeps_the_shared_prefix() -> None:
    """An empty mask is the caller's fault: nobody else's cache may suffer from it."""
    masked = FakeRunner(mask=lambda r: r.sampling.seed == 13)
    engine = Engine(runner=masked)
    first = engine.submit(generate(prompt_of(50), seed=1, max_tokens=2))
    engine.run()
    bad = engine.submit(generate(prompt_of(50), seed=13, max_tokens=2))
    engine.run()
    error = engine.last(bad).error
    assert (CATALOGUE[error.code].status, error.param) == (400, "allowed_token_ids")
    again = engine.submit(generate(prompt_of(50), seed=1, max_tokens=2))
    engine.run()
    assert engine.last(again).usage.cached_tokens == 48
    assert engine.ids(again) == engine.ids(first)


def test_every_running_choice_gets_its_token_however_small_the_step() -> None:
    """Semantics 27 with more choices than tokens in a step."""
    engine = Engine(num_blocks=200, max_num_seqs=24, max_batched_tokens=16)
    ticket = engine.submit(generate(prompt_of(5), n=24, seed=1, max_tokens=200, ignore_eos=True))
    for _ in range(30):
        engine.step()
    lengths = {len(engine.ids(ticket, i)) for i in range(24)}
    assert max(lengths) - min(lengths) <= 1
    engine.core.abort(ticket)


def test_61_abort_frees_blocks_at_once_and_leaves_full_blocks_hittable() -> None:
    """Semantics 61."""
    engine = Engine()
    ticket = engine.submit(generate(prompt_of(40), max_tokens=100, ignore_eos=True))
    for _ in range(4):
        engine.step()
    engine.core.abort(ticket)
    assert engine.core.num_open == 0
    assert engine.scheduler.num_free_blocks + engine.scheduler.num_cached_free_blocks == 64
    again = engine.submit(generate(prompt_of(40), max_tokens=1))
    engine.run()
    assert engine.last(again).usage.cached_tokens == 32
    engine.assert_idle()


def test_the_load_tells_waiting_tokens_apart_from_those_of_a_prompt_that_has_its_blocks() -> None:
    engine = Engine(max_num_seqs=1, max_batched_tokens=32)
    engine.submit(generate(prompt_of(100), max_tokens=1, request_id="long"))
    engine.submit(generate(prompt_of(10), max_tokens=1, request_id="short"))
    engine.step()
    load = engine.core.load()
    assert (load.running, load.waiting) == (1, 1)
    assert load.queued_prefill_tokens == load.waiting_tokens + 100 - 32
    assert load.waiting_tokens == 10
    engine.run()
    idle = engine.core.load()
    assert idle.HasField("waiting_tokens"), "zero is told, unlike by an engine that knows no such"
    assert idle.waiting_tokens == 0


def test_abort_of_a_waiting_request_with_choices_leaves_nothing() -> None:
    engine = Engine(max_num_seqs=4)
    running = engine.submit(generate(prompt_of(20), max_tokens=5, seed=1, request_id="a"))
    engine.step()
    waiting = engine.submit(generate(prompt_of(20), n=4, max_tokens=5, request_id="b"))
    engine.step()
    engine.core.abort(waiting)
    engine.run()
    assert engine.ids(running) == expected_output(prompt_of(20), 1, 5)
    engine.assert_idle()


def test_64_echo_without_generation_returns_prompt_logprobs_only() -> None:
    """Semantics 59 and 64: complete under chunking, and the cache changes nothing."""
    engine = Engine()
    counts = []
    for _ in range(2):
        ticket = engine.submit(generate(prompt_of(70), score_only=True, prompt_logprobs=1))
        engine.run()
        entries = [p for d in engine.deltas[ticket] for p in d.prompt_logprobs]
        counts.append(len(entries))
        assert not entries[0].candidates
        assert [e.candidates[0].token_id for e in entries[1:]] == prompt_of(70)[1:]
        last = engine.last(ticket)
        assert (last.finish_reason, last.usage.output_tokens) == (LENGTH, 0)
        assert last.usage.cached_tokens == 0
    assert counts == [70, 70]
    engine.assert_idle()


@pytest.mark.parametrize("score_only", [True, False])
def test_a_prompt_of_one_token_has_one_entry_that_is_null(score_only: bool) -> None:
    engine = Engine()
    ticket = engine.submit(generate([5], score_only=score_only, prompt_logprobs=1, max_tokens=2))
    engine.run()
    entries = [p for d in engine.deltas[ticket] for p in d.prompt_logprobs]
    assert [len(e.candidates) for e in entries] == [0]


def test_59_prompt_logprobs_are_sent_once_even_when_preempted() -> None:
    engine = Engine(num_blocks=8)
    tickets = [
        engine.submit(
            generate(prompt_of(50, i), prompt_logprobs=0, max_tokens=40, seed=i, request_id=str(i))
        )
        for i in range(3)
    ]
    engine.run()
    for i, ticket in enumerate(tickets):
        entries = [p for d in engine.deltas[ticket] for p in d.prompt_logprobs]
        assert len(entries) == 50
        assert engine.ids(ticket) == expected_output(prompt_of(50, i), i, 40)


@pytest.mark.parametrize("cut", [0, 1, 5, 15, 16, 17, 19])
def test_resume_continues_exactly_where_another_attempt_was(cut: int) -> None:
    prompt, text = prompt_of(30), bytes(range(65, 85))
    runner = FakeRunner(token=lambda ids, _s: text[len(ids) - 30])
    whole = Engine(runner=runner)
    ticket = whole.submit(generate(prompt, max_tokens=20, seed=3))
    whole.run()
    ids, full_text = whole.ids(ticket), whole.text(ticket)

    proto = generate(prompt, max_tokens=20, seed=3, attempt=1)
    proto.resumes.add(output_ids=ids[:cut], chars_sent=max(cut - 1, 0))
    engine = Engine(runner=FakeRunner(token=lambda ids, _s: text[len(ids) - 30]))
    resumed = engine.submit(proto)
    engine.run()
    deltas = engine.deltas[resumed]
    assert [d.position for d in deltas] == list(range(cut, 20))
    assert [t for d in deltas for t in d.token_ids] == ids[cut:]
    assert full_text[: max(cut - 1, 0)] + engine.text(resumed) == full_text
    assert engine.last(resumed).usage.output_tokens == 20


def test_the_choices_that_had_not_ended_are_resumed_and_no_other() -> None:
    prompt = prompt_of(30)
    whole = Engine()
    ticket = whole.submit(generate(prompt, max_tokens=20, seed=3, n=3))
    whole.run()

    proto = generate(prompt, max_tokens=20, seed=3, n=3, attempt=1)
    proto.resumes.add(choice=2, output_ids=whole.ids(ticket, 2)[:7])
    proto.resumes.add(choice=1)
    engine = Engine()
    resumed = engine.submit(proto)
    engine.run()
    deltas = engine.deltas[resumed]
    for choice, start in ((0, 20), (1, 0), (2, 7)):
        ids = [t for d in deltas if d.choice == choice for t in d.token_ids]
        assert ids == whole.ids(ticket, choice)[start:]
    assert sum(d.HasField("usage") for d in deltas) == 1
    engine.assert_idle()


def test_32_requests_that_never_fit_are_refused_at_once_and_others_are_served() -> None:
    """Case 26 and semantics 32."""
    engine = Engine(num_blocks=4, max_model_len=512)
    with pytest.raises(OctavoError) as refusal:
        engine.submit(generate(prompt_of(65), max_tokens=1))
    assert refusal.value.kind.name == "context_length_exceeded"
    ticket = engine.submit(generate(prompt_of(20), seed=1, max_tokens=3))
    engine.run()
    assert engine.ids(ticket) == expected_output(prompt_of(20), 1, 3)


def test_deadlines_end_waiting_and_running_requests_with_their_own_error() -> None:
    now = [0.0]
    engine = Engine(max_num_seqs=1, clock=lambda: now[0])
    running = engine.submit(
        generate(prompt_of(20), max_tokens=400, remaining_ms=5000, request_id="a")
    )
    engine.step()
    waiting = engine.submit(generate(prompt_of(20), max_queue_ms=1000, request_id="b"))
    now[0] = 2.0
    engine.step()
    assert CATALOGUE[engine.last(waiting).error.code].name == "queue_timeout"
    now[0] = 6.0
    engine.step()
    assert CATALOGUE[engine.last(running).error.code].name == "deadline_exceeded"
    engine.assert_idle()


@pytest.mark.parametrize("policy", get_args(Policy))
def test_whoever_is_out_of_time_leaves_no_block_behind(policy: Policy) -> None:
    """In every place: running with choices, waiting, and preempted."""
    now = [0.0]
    engine = Engine(num_blocks=6, clock=lambda: now[0], scheduling_policy=policy, max_preemptions=1)
    tickets = [
        engine.submit(
            generate(prompt_of(20, i), n=n, max_tokens=60, remaining_ms=9000, request_id=str(i))
        )
        for i, n in enumerate((2, 1, 1))
    ]
    while engine.scheduler.num_preemptions < 2:
        engine.step()
    now[0] = 9.0
    engine.step()
    for ticket, n in zip(tickets, (2, 1, 1), strict=True):
        errors = [engine.last(ticket, choice).error.code for choice in range(n)]
        assert {CATALOGUE[code].name for code in errors} == {"deadline_exceeded"}
    assert engine.scheduler.num_reserved_blocks == 0
    engine.assert_idle()


def test_62_more_than_the_quota_is_lowered_to_it() -> None:
    """Semantics 62: like what is larger than the room left."""
    engine = Engine(max_output_tokens=5)
    asked = [
        engine.submit(generate(prompt_of(20), seed=1, max_tokens=most, ignore_eos=True))
        for most in (0, 3, 400)
    ]
    engine.run()
    assert [len(engine.ids(ticket)) for ticket in asked] == [5, 3, 5]
    assert {engine.last(ticket).finish_reason for ticket in asked} == {
        common_pb2.FINISH_REASON_LENGTH
    }


def test_a_queue_that_stands_still_gives_up_its_head_and_leaves_its_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine()
    first = engine.submit(generate(prompt_of(20), max_tokens=3, request_id="a"))
    second = engine.submit(generate(prompt_of(20, 2), seed=2, max_tokens=3, request_id="b"))
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(Planner, "_admit_waiting", lambda *_: None)
        assert not any(engine.step() for _ in range(5))
    assert CATALOGUE[engine.last(first).error.code].name == "queue_stalled"
    (line,) = logs
    assert (line["event"], line["waiting"], line["head_tokens"]) == ("queue_stalled", 1, 20)
    assert all(isinstance(v, int) for k, v in line.items() if k not in ("event", "log_level"))
    engine.run()
    assert engine.ids(second) == expected_output(prompt_of(20, 2), 2, 3)
    engine.assert_idle()


def test_long_prompts_are_cut_by_the_time_that_a_step_may_take() -> None:
    """A slow machine must not go silent for the length of a prompt."""
    now = [0.0]

    def compute(step: StepInput) -> None:
        now[0] += 0.01 * step.num_tokens

    engine = Engine(
        runner=FakeRunner(before=compute),
        clock=lambda: now[0],
        max_batched_tokens=512,
        long_prefill_tokens=512,
        step_target_s=0.5,
    )
    first = engine.submit(generate(prompt_of(400), seed=1, max_tokens=3))
    engine.run()
    assert engine.ids(first) == expected_output(prompt_of(400), 1, 3)
    lengths = [s.num_tokens for s in engine.runner.steps]
    assert lengths[0] == 64
    assert max(lengths[1:]) <= 100


def test_unknown_model_is_refused_with_the_served_names() -> None:
    with pytest.raises(OctavoError, match="fake"):
        Engine().submit(generate(PROMPT, model="other"))


@settings(max_examples=60)
@given(data=st.data())
def test_17_whatever_is_asked_every_request_ends_and_nothing_stays_in_use(
    data: st.DataObject,
) -> None:
    """Random loads with aborts, failing steps and tiny pools: tokens are those of a lone run."""
    draw = data.draw
    fails = draw(st.lists(st.integers(0, 60), max_size=4))
    count = [0]

    def flaky(_step: StepInput) -> None:
        count[0] += 1
        if count[0] in fails:
            raise RuntimeError("flaky")

    engine = Engine(
        num_blocks=draw(st.integers(6, 40)),
        max_num_seqs=draw(st.integers(2, 8)),
        max_batched_tokens=draw(st.sampled_from([16, 24, 64])),
        long_prefill_tokens=draw(st.sampled_from([16, 32])),
        prefix_caching=draw(st.booleans()),
        runner=FakeRunner(before=flaky),
    )
    wanted = []
    for i in range(draw(st.integers(1, 10))):
        shared = draw(st.sampled_from([0, 16, 32]))
        prompt = prompt_of(shared, 1) + prompt_of(draw(st.integers(1, 30)), i + 2)
        n = draw(st.sampled_from([1, 1, 2]))
        length = draw(st.integers(1, 20))
        proto = generate(
            prompt, seed=i, n=n, max_tokens=length, priority=draw(st.integers(-1, 1)),
            request_id=str(i),
        )  # fmt: skip
        ticket = engine.submit(proto)
        wanted.append((ticket, prompt, i, n, length))
        for _ in range(draw(st.integers(0, 3))):
            engine.step()
    aborted = set()
    if draw(st.booleans()):
        victim = wanted[draw(st.integers(0, len(wanted) - 1))][0]
        engine.core.abort(victim)
        aborted.add(id(victim))
    engine.run()
    for ticket, prompt, seed, n, length in wanted:
        for choice in range(n):
            expected = expected_output(prompt, seed + choice, length)
            got = engine.ids(ticket, choice)
            if id(ticket) in aborted:
                assert got == expected[: len(got)]
            elif engine.last(ticket, choice).finish_reason != ERROR:
                assert got == expected
    engine.assert_idle()


def test_choices_of_a_long_prompt_hold_it_once() -> None:
    """Semantics 23: n = 4 takes at most 1.15 times the blocks of one, and copies three."""
    most, copies = [], []
    for n in (1, 4):
        engine = Engine(num_blocks=128, max_model_len=2048)
        engine.submit(generate(prompt_of(1000), n=n, seed=1, max_tokens=32))
        used = 0
        while engine.core.num_open:
            engine.step()
            used = max(used, engine.cache.num_allocatable - engine.cache.num_available)
        most.append(used)
        copies.append(sum(len(step.copies) for step in engine.runner.steps))
        engine.assert_idle()
    assert most[1] <= 1.15 * most[0]
    assert copies == [0, 3]
