from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.v1 import engine_pb2, limits
from octavo.v1.engine_pb2 import BadWord, GenerateRequest, LogitBias
from octavo.v1.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    INVALID_VALUE,
    NEVER_FITS,
    TOKEN_OUT_OF_VOCABULARY,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)
from octavo.v1.validation import (
    Capacity,
    blocks_of_beams,
    choices_of,
    is_greedy,
    room_left,
    validate_request,
    validate_sampling,
)

CAPACITY = Capacity(vocab_size=100, max_model_len=64, max_num_seqs=8, num_blocks=4, block_tokens=16)

Change = Callable[[GenerateRequest], object]


def request(*ids: int) -> GenerateRequest:
    made = GenerateRequest()
    made.token_ids.ids.extend(ids or (1, 2, 3))
    return made


def refused(change: Change, capacity: Capacity = CAPACITY) -> OctavoError:
    made = request()
    change(made)
    with pytest.raises(OctavoError) as raised:
        validate_request(made, capacity)
    return raised.value


def set_sampling(**values: object) -> Change:
    return lambda r: r.sampling.MergeFrom(engine_pb2.Sampling(**values))  # type: ignore[arg-type]


def set_stop(**values: object) -> Change:
    return lambda r: r.stop.MergeFrom(engine_pb2.Stop(**values))  # type: ignore[arg-type]


def set_request(**values: object) -> Change:
    return lambda r: r.MergeFrom(GenerateRequest(**values))  # type: ignore[arg-type]


def test_plain_request_passes() -> None:
    validate_request(request(), CAPACITY)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e-3])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty"])
def test_42_number_that_is_none_or_negative_is_refused(field: str, bad: float) -> None:
    error = refused(set_sampling(**{field: bad}))
    assert (error.kind, error.param) == (INVALID_VALUE, field)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (set_sampling(temperature=2.1), "temperature"),
        (set_sampling(top_p=0.0), "top_p"),
        (set_sampling(top_p=1.1), "top_p"),
        (set_sampling(top_k=-2), "top_k"),
        (set_sampling(min_p=1.1), "min_p"),
        (set_sampling(repetition_penalty=0.0), "repetition_penalty"),
        (set_sampling(presence_penalty=2.1), "presence_penalty"),
        (set_sampling(frequency_penalty=math.nan), "frequency_penalty"),
        (set_sampling(seed=2**63), "seed"),
        (set_sampling(logit_bias=[LogitBias(token_id=1, bias=math.inf)]), "logit_bias"),
        (set_sampling(logit_bias=[LogitBias()] * 1025), "logit_bias"),
        (set_sampling(bad_words=[BadWord()]), "bad_words"),
        (set_sampling(bad_words=[BadWord(ids=[1] * 65)]), "bad_words"),
        (set_sampling(bad_words=[BadWord(ids=[1])] * 1025), "bad_words"),
        (set_stop(strings=[""]), "stop"),
        (set_stop(strings=["x" * 1025]), "stop"),
        (set_stop(strings=["x"] * 65), "stop"),
        (set_stop(token_ids=[1] * 257), "stop_token_ids"),
        (set_request(logprobs=21), "logprobs"),
        (set_request(prompt_logprobs=21), "prompt_logprobs"),
        (set_request(n=9), "n"),
        (set_request(n=2, score_only=True), "n"),
        (set_request(n=2, sampling=engine_pb2.Sampling(temperature=0)), "n"),
        (set_request(max_tokens=3, min_tokens=4), "min_tokens"),
        (set_request(request_id="x" * 129), "request_id"),
        (set_request(cache_salt="x" * 257), "cache_salt"),
        (set_request(fairness_key="x" * 129), "fairness_key"),
        (set_request(max_queue_ms=2**31), "max_queue_ms"),
        (set_request(remaining_ms=2**31), "remaining_ms"),
        (set_request(resumes=[engine_pb2.Resume(choice=1)]), "resumes"),
        (lambda r: r.token_ids.Clear(), "prompt"),
    ],
)  # fmt: skip
def test_42_value_out_of_range_is_refused_with_its_field(change: Change, param: str) -> None:
    error = refused(change)
    assert (error.kind, error.param) == (INVALID_VALUE, param)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda r: r.token_ids.ids.append(100), "prompt"),
        (set_sampling(logit_bias=[LogitBias(token_id=100)]), "logit_bias"),
        (set_sampling(bad_words=[BadWord(ids=[100])]), "bad_words"),
        (set_sampling(allowed_token_ids=[100]), "allowed_token_ids"),
        (set_stop(token_ids=[100]), "stop_token_ids"),
        (set_request(resumes=[engine_pb2.Resume(output_ids=[100])]), "resumes"),
    ],
)
def test_42_token_out_of_the_vocabulary_is_refused_wherever_it_stands(
    change: Change, param: str
) -> None:
    error = refused(change)
    assert (error.kind, error.param) == (TOKEN_OUT_OF_VOCABULARY, param)
    assert "out of vocabulary (size 100)" in error.message


def test_42_limits_themselves_are_allowed() -> None:
    made = request()
    made.sampling.temperature = limits.MAX_TEMPERATURE
    made.sampling.top_p = 1.0
    made.sampling.seed = limits.MAX_SEED
    made.stop.strings.append("x" * limits.MAX_STOP_CHARS)
    made.logprobs = limits.MAX_LOGPROBS
    made.n = CAPACITY.max_num_seqs
    made.max_tokens = made.min_tokens = 5
    validate_request(made, CAPACITY)


@pytest.mark.parametrize(("length", "fits"), [(63, True), (64, False)])
def test_62_prompt_must_leave_room_for_one_token(length: int, fits: bool) -> None:
    made = request(*[1] * length)
    if fits:
        validate_request(made, CAPACITY)
        return
    with pytest.raises(OctavoError) as raised:
        validate_request(made, CAPACITY)
    assert raised.value.kind is CONTEXT_LENGTH_EXCEEDED
    assert "maximum context length is 64 tokens, but the request has 64" in raised.value.message


def test_prompt_that_is_only_scored_may_fill_the_model() -> None:
    made = request(*[1] * 64)
    made.score_only = True
    validate_request(made, CAPACITY)


def test_request_larger_than_the_whole_pool_is_refused_at_once() -> None:
    small = Capacity(vocab_size=9, max_model_len=64, max_num_seqs=8, num_blocks=2, block_tokens=16)
    error = refused(set_request(max_tokens=30), small)
    assert error.kind is NEVER_FITS
    assert "needs 3 KV blocks at once, the engine has 2" in error.message
    made = request()
    made.max_tokens = 29
    validate_request(made, small)


def test_prompt_in_words_is_for_the_tokenizer_first() -> None:
    error = refused(set_request(text="hello"))
    assert error.kind is UNSUPPORTED_PARAMETER


def test_too_large_max_tokens_is_an_upper_bound_not_an_error() -> None:
    made = request()
    made.max_tokens = 10**9
    validate_request(made, CAPACITY)
    assert room_left(made, CAPACITY) == 61
    made.max_tokens = 0
    assert room_left(made, CAPACITY) == 61


def test_the_engines_quota_is_a_part_of_the_room() -> None:
    made, capacity = request(), replace(CAPACITY, max_output_tokens=9)
    for asked, got in ((0, 9), (5, 5), (10**9, 9)):
        made.max_tokens = asked
        validate_request(made, capacity)
        assert room_left(made, capacity) == got
    assert room_left(made, replace(CAPACITY, max_output_tokens=500)) == 61


def test_a_prompt_fits_if_its_quota_does() -> None:
    small = Capacity(vocab_size=9, max_model_len=64, max_num_seqs=8, num_blocks=2, block_tokens=16)
    assert refused(set_request(), small).kind is NEVER_FITS
    validate_request(request(), replace(small, max_output_tokens=20))


@pytest.mark.parametrize(
    ("temperature", "greedy"),
    [(None, False), (0.0, True), (9e-6, True), (1.1e-5, False), (1, False)],
)
def test_greedy_is_a_temperature_below_its_limit(temperature: float | None, greedy: bool) -> None:
    sampling = engine_pb2.Sampling()
    if temperature is not None:
        sampling.temperature = temperature
    assert is_greedy(sampling) is greedy


def test_zero_choices_mean_one() -> None:
    assert [choices_of(GenerateRequest(n=n)) for n in (0, 1, 3)] == [1, 1, 3]


def test_capacity_comes_from_the_card() -> None:
    fields: dict[str, Any] = {
        "vocab_size": 1,
        "max_model_len": 2,
        "max_num_seqs": 3,
        "num_blocks": 4,
        "block_tokens": 5,
        "max_output_tokens": 6,
    }
    assert Capacity.of(engine_pb2.ModelCard(**fields)) == Capacity(**fields)


FLOATS = st.floats(width=32)


@given(FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
def test_42_what_passes_is_finite_and_in_range(
    temperature: float, top_p: float, min_p: float, repetition: float, presence: float
) -> None:
    sampling = engine_pb2.Sampling(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
    )
    passes = (
        0 <= temperature <= limits.MAX_TEMPERATURE
        and 0 < top_p <= 1
        and 0 <= min_p <= 1
        and limits.MIN_REPETITION_PENALTY <= repetition <= limits.MAX_REPETITION_PENALTY
        and -2 <= presence <= 2
    )
    with nullcontext() if passes else pytest.raises(OctavoError):
        validate_sampling(sampling, 100)


def beam_request(**fields: object) -> GenerateRequest:
    made = request()
    made.max_tokens = 10
    made.beam.width = 2
    made.MergeFrom(GenerateRequest(**fields))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda r: r.beam.MergeFrom(engine_pb2.Beam(width=1)), "beam_width"),
        (lambda r: r.beam.MergeFrom(engine_pb2.Beam(width=9)), "beam_width"),
        (lambda r: r.beam.MergeFrom(engine_pb2.Beam(width=2**32 - 1)), "beam_width"),
        (set_request(n=3), "n"),
        (lambda r: r.beam.MergeFrom(engine_pb2.Beam(length_penalty=5.1)), "length_penalty"),
        (lambda r: r.beam.MergeFrom(engine_pb2.Beam(length_penalty=math.nan)), "length_penalty"),
        (lambda r: setattr(r.beam, "early_stopping", 3), "early_stopping"),
        (set_sampling(temperature=0.5), "temperature"),
        (set_sampling(top_p=0.9), "top_p"),
        (set_sampling(top_k=5), "top_k"),
        (set_sampling(min_p=0.1), "min_p"),
        (set_stop(strings=["x"]), "stop"),
        (set_request(logprobs=0), "logprobs"),
        (set_request(prompt_logprobs=0), "prompt_logprobs"),
        (set_request(score_only=True), "max_tokens"),
        (set_request(resumes=[engine_pb2.Resume(output_ids=[1])]), "resumes"),
        (set_request(resumes=[engine_pb2.Resume(chars_sent=1)]), "resumes"),
    ],
)
def test_beam_search_refuses_what_it_would_have_to_ignore(change: Change, param: str) -> None:
    made = beam_request()
    change(made)
    with pytest.raises(OctavoError) as raised:
        validate_request(made, CAPACITY)
    assert raised.value.param == param
    assert raised.value.kind in (INVALID_VALUE, UNSUPPORTED_PARAMETER)


def test_beam_search_takes_edits_ends_and_defaults() -> None:
    sampling = engine_pb2.Sampling(
        top_p=1.0,
        top_k=-1,
        seed=7,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias=[LogitBias(token_id=1, bias=2.0)],
        bad_words=[BadWord(ids=[1])],
        allowed_token_ids=[1, 2, 3],
    )
    for temperature in (None, 0.0, 1.0):
        if temperature is not None:
            sampling.temperature = temperature
        stop = engine_pb2.Stop(token_ids=[4], ignore_eos=True, include_in_output=True)
        validate_request(
            beam_request(
                sampling=sampling,
                stop=stop,
                n=2,
                min_tokens=3,
                resumes=[engine_pb2.Resume(choice=1)],
            ),
            CAPACITY,
        )


@pytest.mark.parametrize(("prompt", "width", "fits"), [(20, 3, True), (20, 4, False), (3, 4, True)])
def test_beams_fit_with_all_that_they_may_not_share(prompt: int, width: int, fits: bool) -> None:
    """Of 20 + 10 tokens a block of 16 is shared, so that 4 blocks are enough for 3 beams."""
    made = beam_request()
    made.token_ids.ids[:] = [1] * prompt
    made.beam.width = width
    if fits:
        validate_request(made, CAPACITY)
        return
    with pytest.raises(OctavoError) as raised:
        validate_request(made, CAPACITY)
    assert raised.value.kind is NEVER_FITS


@given(width=st.integers(1, 5), prompt=st.integers(1, 60), outputs=st.integers(0, 60))
def test_blocks_of_beams_are_those_that_they_cannot_share(
    width: int, prompt: int, outputs: int
) -> None:
    """Counted one by one: a block that holds prompt alone is everybody's."""
    num_tokens = prompt + outputs
    starts = range(0, num_tokens, 16)
    blocks = {(start, 0 if start + 16 <= prompt else b) for b in range(width) for start in starts}
    assert blocks_of_beams(width, num_tokens, prompt=prompt, block_tokens=16) == len(blocks)


def test_all_that_a_beam_search_tells_fits_into_a_message() -> None:
    capacity = Capacity(
        vocab_size=100, max_model_len=2**17, max_num_seqs=8, num_blocks=2**16, block_tokens=16
    )
    made = beam_request(n=2)
    made.max_tokens = limits.MAX_BEAM_TOKENS // 2
    validate_request(made, capacity)
    for change in (1, -made.max_tokens):  # one more; all the room there is
        more = GenerateRequest()
        more.CopyFrom(made)
        more.max_tokens += change
        with pytest.raises(OctavoError) as raised:
            validate_request(more, capacity)
        assert raised.value.param == "max_tokens"
