"""Turns a GenerateRequest into the engine's own requests. Pure: chance and ids are arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from octavo.engine.beam_search import BeamParams, BeamSearch, EarlyStopping
from octavo.engine.request import Beams, Request, RequestId, SamplingParams, StopParams
from octavo.v1 import engine_pb2, limits
from octavo.v1.block_hash import BlockHash, hash_root
from octavo.v1.errors import MODEL_NOT_FOUND, OctavoError
from octavo.v1.validation import Capacity, choices_of, is_greedy, room_left, validate_request

_EARLY_STOPPING: Final = {
    engine_pb2.EARLY_STOPPING_UNSPECIFIED: EarlyStopping.HEURISTIC,
    engine_pb2.EARLY_STOPPING_WHEN_FULL: EarlyStopping.WHEN_FULL,
    engine_pb2.EARLY_STOPPING_NEVER: EarlyStopping.NEVER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What intake must know of the loaded model."""

    served_names: tuple[str, ...]
    identity: bytes
    eos_token_ids: frozenset[int]
    capacity: Capacity


def build_requests(
    proto: engine_pb2.GenerateRequest,
    model: Model,
    *,
    now: float,
    next_id: Callable[[], RequestId],
    draw_seed: Callable[[], int],
) -> tuple[Request, ...]:
    """Returns one Request per choice; of a new request the first carries the others as siblings.

    Choices that are resumed have nothing in common but the prompt, so each is on its own; those of
    a beam search, which begins again, are always found together.

    Args:
        proto: the request, its prompt as token ids.
        model: the model that serves it.
        now: monotonic seconds.
        next_id: gives the engine's own ids.
        draw_seed: gives a seed when the request has none.

    Raises:
        OctavoError: from the catalogue, when the request cannot be run.
    """
    if proto.model and proto.model not in model.served_names:
        raise OctavoError(
            MODEL_NOT_FOUND,
            param="model",
            model=proto.model,
            served=", ".join(model.served_names),
            closest="",
        )
    validate_request(proto, model.capacity)
    seed = proto.sampling.seed if proto.sampling.HasField("seed") else draw_seed()
    root = hash_root(model.identity, proto.cache_salt)
    stop = _stop_params(proto, model)
    resumes = list(proto.resumes) or [engine_pb2.Resume(choice=i) for i in range(choices_of(proto))]
    choices = [
        _choice(proto, resume, stop, root, now=now, id=next_id(), seed=seed) for resume in resumes
    ]
    first = choices[0]
    if not proto.resumes or proto.HasField("beam"):
        first.siblings = tuple(choices[1:])
    if proto.HasField("beam"):
        first.beams = _beams(proto, first, next_id)
    if proto.HasField("prompt_logprobs"):  # the prompt is told once, with the first choice
        first.prompt_logprobs = proto.prompt_logprobs
    return tuple(choices)


def _beams(
    proto: engine_pb2.GenerateRequest, carrier: Request, next_id: Callable[[], RequestId]
) -> Beams:
    """Returns the beams of a search, none of which has a sequence yet."""
    beams = [
        replace(carrier, id=next_id(), carrier=carrier, siblings=(), output_ids=[], block_hashes=[])
        for _ in range(proto.beam.width)
    ]
    return Beams(search=BeamSearch(_beam_params(proto.beam, carrier.stop)), idle=beams)


def _beam_params(beam: engine_pb2.Beam, stop: StopParams) -> BeamParams:
    return BeamParams(
        width=beam.width,
        max_tokens=stop.max_tokens,
        end_token_ids=stop.eos_token_ids | stop.stop_token_ids,
        length_penalty=beam.length_penalty if beam.HasField("length_penalty") else 1.0,
        early_stopping=_EARLY_STOPPING[beam.early_stopping],
    )


def _choice(
    proto: engine_pb2.GenerateRequest,
    resume: engine_pb2.Resume,
    stop: StopParams,
    root: BlockHash,
    *,
    now: float,
    id: RequestId,
    seed: int,
) -> Request:
    return Request(
        id=id,
        index=resume.choice,
        prompt_ids=tuple(proto.token_ids.ids),
        sampling=_sampling_params(proto, stop, (seed + resume.choice) & limits.MAX_SEED),
        stop=stop,
        arrival=now - proto.age_ms / 1e3,
        queued=now,
        hash_root=root,
        priority=proto.priority,
        fairness_key=proto.fairness_key,
        score_only=proto.score_only,
        deadline=now + proto.remaining_ms / 1e3 if proto.remaining_ms else None,
        queue_deadline=now + proto.max_queue_ms / 1e3 if proto.max_queue_ms else None,
        output_ids=list(resume.output_ids),
    )


def _stop_params(proto: engine_pb2.GenerateRequest, model: Model) -> StopParams:
    return StopParams(
        max_tokens=0 if proto.score_only else room_left(proto, model.capacity),
        min_tokens=proto.min_tokens,
        eos_token_ids=frozenset() if proto.stop.ignore_eos else model.eos_token_ids,
        stop_token_ids=frozenset(proto.stop.token_ids),
        stop_strings=tuple(proto.stop.strings),
        include_in_output=proto.stop.include_in_output,
    )


def _sampling_params(
    proto: engine_pb2.GenerateRequest, stop: StopParams, seed: int
) -> SamplingParams:
    s = proto.sampling
    greedy = is_greedy(s)
    temperature = s.temperature if s.HasField("temperature") else 1.0
    ends = stop.eos_token_ids | stop.stop_token_ids
    bound = limits.MAX_LOGIT_BIAS_VALUE
    beam = proto.beam if proto.HasField("beam") else None
    return SamplingParams(
        temperature=0.0 if greedy else max(temperature, limits.MIN_TEMPERATURE),
        # With argmax the filters cannot change the outcome, so they cost nothing either.
        top_p=1.0 if greedy or not s.HasField("top_p") else s.top_p,
        top_k=0 if greedy or s.top_k < 0 else s.top_k,
        min_p=0.0 if greedy else s.min_p,
        repetition_penalty=s.repetition_penalty if s.HasField("repetition_penalty") else 1.0,
        presence_penalty=s.presence_penalty,
        frequency_penalty=s.frequency_penalty,
        seed=seed,
        logit_bias=tuple(
            {b.token_id: min(max(b.bias, -bound), bound) for b in s.logit_bias}.items()
        ),
        bad_words=tuple(tuple(w.ids) for w in s.bad_words),
        allowed_token_ids=tuple(dict.fromkeys(s.allowed_token_ids)),
        min_tokens=stop.min_tokens,
        masked_before_min=tuple(sorted(ends)) if stop.min_tokens else (),
        logprobs=proto.logprobs if proto.HasField("logprobs") else None,
        num_candidates=_beam_params(beam, stop).num_candidates if beam is not None else 0,
    )
