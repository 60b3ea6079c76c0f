"""From a GenerateRequest to the engine's own requests."""

from __future__ import annotations

import itertools

import pytest
from tests.engine.harness import generate

from octavo.engine.beam_search import BeamParams, EarlyStopping
from octavo.engine.intake import Model, build_requests
from octavo.engine.request import Request, RequestId
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError
from octavo.v1.validation import Capacity

MODEL = Model(
    served_names=("m",),
    identity=b"i" * 16,
    eos_token_ids=frozenset({9}),
    capacity=Capacity(
        vocab_size=100, max_model_len=64, max_num_seqs=4, num_blocks=10, block_tokens=16
    ),
)


def build(proto: engine_pb2.GenerateRequest) -> tuple[Request, ...]:
    ids = itertools.count(1)
    return build_requests(
        proto, MODEL, now=5.0, next_id=lambda: RequestId(next(ids)), draw_seed=lambda: 77
    )


def test_41_temperatures_are_greedy_raised_or_kept() -> None:
    """Semantics 41."""
    for given, got in ((0.0, 0.0), (1e-6, 0.0), (0.005, 0.01), (0.7, 0.7)):
        (request,) = build(generate([1], temperature=given))
        assert request.sampling.temperature == pytest.approx(got)
    (default,) = build(generate([1]))
    assert default.sampling.temperature == 1.0


def test_41_greedy_neutralises_the_filters() -> None:
    (request,) = build(generate([1], temperature=0.0, top_p=0.1, top_k=3, min_p=0.5))
    sampling = request.sampling
    assert (sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)


def test_46_choices_get_consecutive_seeds_and_the_first_carries_the_rest() -> None:
    choices = build(generate([1, 2], n=3, seed=40))
    assert [c.sampling.seed for c in choices] == [40, 41, 42]
    assert choices[0].siblings == choices[1:]


def test_a_seed_is_drawn_when_none_is_given() -> None:
    assert build(generate([1]))[0].sampling.seed == 77
    assert build(generate([1], seed=0))[0].sampling.seed == 0


def test_42_biases_are_clipped_and_top_k_minus_one_means_all() -> None:
    proto = generate([1], top_k=-1)
    proto.sampling.logit_bias.add(token_id=3, bias=1e9)
    proto.sampling.logit_bias.add(token_id=4, bias=-1e9)
    (request,) = build(proto)
    assert request.sampling.logit_bias == ((3, 100.0), (4, -100.0))
    assert request.sampling.top_k == 0


def test_min_tokens_masks_every_id_that_would_end_the_choice() -> None:
    proto = generate([1], min_tokens=2, max_tokens=5)
    proto.stop.token_ids.extend([7, 8])
    assert build(proto)[0].sampling.masked_before_min == (7, 8, 9)
    proto.min_tokens = 0
    assert build(proto)[0].sampling.masked_before_min == ()


def test_62_max_tokens_is_clamped_to_the_room_left() -> None:
    assert build(generate([1] * 60, max_tokens=1000))[0].stop.max_tokens == 4
    assert build(generate([1] * 60))[0].stop.max_tokens == 4


def test_the_fairness_key_is_kept() -> None:
    assert [r.fairness_key for r in build(generate([1], fairness_key="team a"))] == ["team a"]


def test_deadlines_count_from_arrival() -> None:
    (request,) = build(generate([1], remaining_ms=1500, max_queue_ms=500))
    assert (request.deadline, request.queue_deadline) == (6.5, 5.5)


def test_a_resume_that_is_complete_already_is_refused() -> None:
    proto = generate([1], max_tokens=2)
    proto.resumes.add(output_ids=[1, 2])
    with pytest.raises(OctavoError, match="no room"):
        build(proto)


def test_choices_that_are_resumed_are_on_their_own_with_their_own_seeds() -> None:
    proto = generate([1, 2], n=3, seed=10)
    proto.resumes.add(choice=2, output_ids=[7, 8])
    proto.resumes.add(choice=0)
    choices = build(proto)
    assert [(c.index, c.output_ids, c.sampling.seed) for c in choices] == [
        (2, [7, 8], 12),
        (0, [], 10),
    ]
    assert [c.siblings for c in choices] == [(), ()]


@pytest.mark.parametrize("choices", [(0, 0), (2,), (0, 1, 5)])
def test_a_choice_is_resumed_once_and_exists(choices: tuple[int, ...]) -> None:
    proto = generate([1, 2], n=2)
    for choice in choices:
        proto.resumes.add(choice=choice)
    with pytest.raises(OctavoError, match="each choice once"):
        build(proto)


def test_the_age_keeps_the_place_in_the_queue_and_shortens_no_deadline() -> None:
    (request,) = build(generate([1], age_ms=2000, remaining_ms=1500))
    assert (request.arrival, request.deadline) == (3.0, 6.5)


def test_another_model_is_refused() -> None:
    with pytest.raises(OctavoError, match="served: m"):
        build(generate([1], model="x"))


def test_the_prompt_is_scored_for_the_first_choice_only() -> None:
    choices = build(generate([1, 2], n=3, prompt_logprobs=2))
    assert [c.prompt_logprobs for c in choices] == [2, None, None]


def test_a_bias_given_twice_counts_once() -> None:
    proto = generate([1])
    for _ in range(5):
        proto.sampling.logit_bias.add(token_id=3, bias=90.0)
    assert build(proto)[0].sampling.logit_bias == ((3, 90.0),)


def test_scoring_and_resuming_exclude_each_other() -> None:
    proto = generate([1, 2], score_only=True)
    proto.resumes.add(output_ids=[3] * 5000)
    with pytest.raises(OctavoError, match="resume"):
        build(proto)


def test_a_beam_search_is_one_request_that_carries_its_beams_and_its_choices() -> None:
    proto = generate([1, 2], n=2, max_tokens=5)
    proto.stop.token_ids.append(7)
    proto.beam.width = 3
    proto.beam.early_stopping = engine_pb2.EARLY_STOPPING_NEVER
    first, second = build(proto)
    assert first.siblings == (second,)
    assert first.slots == 3
    beams = first.beams
    assert beams is not None
    assert beams.search.params == BeamParams(
        width=3,
        max_tokens=5,
        end_token_ids=frozenset({7, 9}),
        length_penalty=1.0,
        early_stopping=EarlyStopping.NEVER,
    )
    assert {beam.sampling.num_candidates for beam in (first, *beams.idle)} == {5}
    assert len({request.id for request in (first, second, *beams.idle)}) == 5
    for beam in beams.idle:
        assert (beam.carrier, beam.owner, beam.beams, beam.siblings) == (first, first, None, ())
        assert beam.prompt_ids == first.prompt_ids
        assert beam.output_ids is not first.output_ids


def test_choices_of_a_beam_search_that_are_missing_are_searched_together() -> None:
    proto = generate([1, 2], n=3, max_tokens=5)
    proto.beam.width = 3
    for choice in (2, 1):
        proto.resumes.add(choice=choice)
    first, second = build(proto)
    assert (first.index, second.index) == (2, 1)
    assert first.siblings == (second,)
