"""Total validation of a GenerateRequest, called by gateway and engine alike.

Everything that a caller can write is checked here once: finite, typed, ranged. What passes cannot
break a step. Nothing here knows HTTP, queues or memory pressure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.v1 import engine_pb2, limits
from octavo.v1.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    INVALID_VALUE,
    NEVER_FITS,
    TOKEN_OUT_OF_VOCABULARY,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an engine can hold, from its card."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    """Allocatable blocks of the pool."""
    block_tokens: int
    max_output_tokens: int = 0
    """Output of one choice, whatever room is left; zero sets no bound."""
    pin_blocks: int = 0
    """Blocks that pinned prefixes may take; one choice always fits beside them."""

    @classmethod
    def of(cls, card: engine_pb2.ModelCard) -> Capacity:
        """Reads the capacity out of a model card."""
        return cls(
            vocab_size=card.vocab_size,
            max_model_len=card.max_model_len,
            max_num_seqs=card.max_num_seqs,
            num_blocks=card.num_blocks,
            block_tokens=card.block_tokens,
            max_output_tokens=card.max_output_tokens,
            pin_blocks=card.pin_blocks,
        )


def _refuse(param: str, reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param=param, reason=reason)


def _check_range(
    param: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    inside = math.isfinite(value) and value <= high and (value > low if open_low else value >= low)
    if not inside:
        bracket = "(" if open_low else "["
        raise _refuse(param, f"must be in {bracket}{low:g}, {high:g}], not {value:g}")


def _check_ids(param: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if token >= vocab_size:
            raise OctavoError(TOKEN_OUT_OF_VOCABULARY, param=param, token=token, vocab=vocab_size)


def _check_count(param: str, count: int, limit: int) -> None:
    if count > limit:
        raise _refuse(param, f"has {count} entries, at most {limit} are allowed")


def validate_sampling(sampling: engine_pb2.Sampling, vocab_size: int) -> None:
    """Raises OctavoError for a sampling field outside its range."""
    if sampling.HasField("temperature"):
        _check_range("temperature", sampling.temperature, 0.0, limits.MAX_TEMPERATURE)
    if sampling.HasField("top_p"):
        _check_range("top_p", sampling.top_p, 0.0, 1.0, open_low=True)
    if sampling.top_k < -1:
        raise _refuse("top_k", "must be -1, 0 (both: all tokens) or positive")
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    if sampling.HasField("repetition_penalty"):
        _check_range(
            "repetition_penalty",
            sampling.repetition_penalty,
            limits.MIN_REPETITION_PENALTY,
            limits.MAX_REPETITION_PENALTY,
        )
    _check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0)
    _check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0)
    if sampling.HasField("seed") and sampling.seed > limits.MAX_SEED:
        raise _refuse("seed", f"must be at most {limits.MAX_SEED}")
    _check_count("logit_bias", len(sampling.logit_bias), limits.MAX_LOGIT_BIAS)
    _check_ids("logit_bias", (b.token_id for b in sampling.logit_bias), vocab_size)
    for bias in sampling.logit_bias:
        if not math.isfinite(bias.bias):
            raise _refuse("logit_bias", "values must be finite")
    _check_count("bad_words", len(sampling.bad_words), limits.MAX_BAD_WORDS)
    for word in sampling.bad_words:
        if not word.ids:
            raise _refuse("bad_words", "an entry is empty")
        _check_count("bad_words", len(word.ids), limits.MAX_BAD_WORD_TOKENS)
        _check_ids("bad_words", word.ids, vocab_size)
    _check_count("allowed_token_ids", len(sampling.allowed_token_ids), vocab_size)
    _check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab_size)


def validate_stop(stop: engine_pb2.Stop, vocab_size: int) -> None:
    """Raises OctavoError for an unusable stop condition."""
    _check_count("stop", len(stop.strings), limits.MAX_STOP_STRINGS)
    for text in stop.strings:
        if not text:
            raise _refuse("stop", "a stop string is empty")
        if len(text) > limits.MAX_STOP_CHARS:
            raise _refuse(
                "stop", f"a stop string is longer than {limits.MAX_STOP_CHARS} characters"
            )
    _check_count("stop_token_ids", len(stop.token_ids), limits.MAX_STOP_TOKEN_IDS)
    _check_ids("stop_token_ids", stop.token_ids, vocab_size)


def is_greedy(sampling: engine_pb2.Sampling) -> bool:
    """Tells whether the temperature means argmax."""
    return sampling.HasField("temperature") and sampling.temperature < limits.GREEDY_TEMPERATURE


def validate_request(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    """Raises OctavoError unless the request, prompt as ids, can be run.

    The prompt must be tokenised already (`token_ids`). `max_tokens` above the room left is no
    error: it is an upper bound, and `room_left` clamps it.
    """
    _check_identifiers(request)
    validate_sampling(request.sampling, capacity.vocab_size)
    validate_stop(request.stop, capacity.vocab_size)
    for name in ("logprobs", "prompt_logprobs"):
        if request.HasField(name) and getattr(request, name) > limits.MAX_LOGPROBS:
            raise _refuse(name, f"must be at most {limits.MAX_LOGPROBS}")
    _check_choices(request, capacity)
    if request.HasField("beam"):
        _check_beam(request, capacity)
    _check_prompt(request, capacity)
    if request.max_tokens and request.min_tokens > request.max_tokens:
        raise _refuse("min_tokens", f"is larger than max_tokens ({request.max_tokens})")
    _check_resumes(request, capacity)


def choices_of(request: engine_pb2.GenerateRequest) -> int:
    """Returns n, where zero means one."""
    return request.n or 1


def room_left(request: engine_pb2.GenerateRequest, capacity: Capacity) -> int:
    """Returns the output tokens one choice may have: max_tokens, clamped to the model's length.

    The engine's quota, max_output_tokens, is a part of the room like the model's length.
    """
    room = capacity.max_model_len - len(request.token_ids.ids)
    if capacity.max_output_tokens:
        room = min(room, capacity.max_output_tokens)
    return min(request.max_tokens, room) if request.max_tokens else room


def _check_identifiers(request: engine_pb2.GenerateRequest) -> None:
    if len(request.request_id) > limits.MAX_REQUEST_ID_CHARS:
        raise _refuse("request_id", f"is longer than {limits.MAX_REQUEST_ID_CHARS} characters")
    if len(request.cache_salt) > limits.MAX_SALT_CHARS:
        raise _refuse("cache_salt", f"is longer than {limits.MAX_SALT_CHARS} characters")
    if len(request.fairness_key) > limits.MAX_FAIRNESS_KEY_CHARS:
        raise _refuse("fairness_key", f"is longer than {limits.MAX_FAIRNESS_KEY_CHARS} characters")
    for name in ("max_queue_ms", "remaining_ms", "age_ms"):
        if getattr(request, name) > limits.MAX_MS:
            raise _refuse(name, f"must be at most {limits.MAX_MS}")


def _check_choices(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    n = choices_of(request)
    limit = min(limits.MAX_N, capacity.max_num_seqs)
    if n > limit:
        raise _refuse("n", f"must be at most {limit}")
    if n > 1 and is_greedy(request.sampling) and not request.HasField("beam"):
        raise _refuse("n", "must be 1 with temperature 0: all choices would be equal")
    if n > 1 and request.score_only:
        raise _refuse("n", "must be 1 when nothing is generated")


def _check_resumes(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    if not request.resumes:
        return
    if request.score_only:
        raise _refuse("resumes", "continue nothing when nothing is generated")
    choices = [resume.choice for resume in request.resumes]
    if len(set(choices)) < len(choices) or max(choices) >= choices_of(request):
        raise _refuse("resumes", "must name each choice once")
    room = room_left(request, capacity)
    for resume in request.resumes:
        _check_ids("resumes", resume.output_ids, capacity.vocab_size)
        if len(resume.output_ids) >= room:
            raise _refuse("resumes", f"have no room: the choice may have {room} tokens")


def _check_beam(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    """Checks a beam search, and that nothing is asked for that it would have to ignore.

    What edits the logits works as ever, and so do the ends but for strings. A seed is welcome: the
    outcome is always the same.
    """
    beam, sampling, n = request.beam, request.sampling, choices_of(request)
    limit = min(limits.MAX_N, capacity.max_num_seqs)
    if not 2 <= beam.width <= limit:
        raise _refuse("beam_width", f"must be in [2, {limit}], not {beam.width}")
    if n > beam.width:
        raise _refuse("n", f"must be at most the beam width ({beam.width})")
    if beam.HasField("length_penalty"):
        bound = limits.MAX_LENGTH_PENALTY
        _check_range("length_penalty", beam.length_penalty, -bound, bound)
    if beam.early_stopping not in engine_pb2.EarlyStopping.values():
        raise _refuse("early_stopping", f"has no value {beam.early_stopping}")
    asked = {
        "temperature": sampling.HasField("temperature")
        and sampling.temperature != 1.0
        and not is_greedy(sampling),
        "top_p": sampling.HasField("top_p") and sampling.top_p != 1.0,
        "top_k": sampling.top_k > 0,
        "min_p": sampling.min_p > 0.0,
        "stop": bool(request.stop.strings),
        "logprobs": request.HasField("logprobs"),
        "prompt_logprobs": request.HasField("prompt_logprobs"),
        "max_tokens": request.score_only,
        "resumes": any(resume.output_ids or resume.chars_sent for resume in request.resumes),
    }
    for param, is_asked in asked.items():
        if is_asked:
            reason = "beam search does not have it: it draws nothing and tells whole sequences only"
            raise OctavoError(UNSUPPORTED_PARAMETER, param=param, reason=reason)
    if n * room_left(request, capacity) > limits.MAX_BEAM_TOKENS:
        reason = f"times n must be at most {limits.MAX_BEAM_TOKENS} with beam search"
        raise _refuse("max_tokens", reason)


def _check_prompt(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    if request.WhichOneof("prompt") != "token_ids":
        raise OctavoError(
            UNSUPPORTED_PARAMETER, param="prompt", reason="it must be tokenised before validation"
        )
    ids = request.token_ids.ids
    if not ids:
        raise _refuse("prompt", "is empty")
    _check_ids("prompt", ids, capacity.vocab_size)
    # A prompt that fills the model leaves no room for a single output token.
    limit = capacity.max_model_len if request.score_only else capacity.max_model_len - 1
    if len(ids) > limit:
        raise OctavoError(
            CONTEXT_LENGTH_EXCEEDED,
            param="messages",
            limit=capacity.max_model_len,
            tokens=len(ids),
        )
    check_fits(request, capacity)


def check_fits(request: engine_pb2.GenerateRequest, capacity: Capacity) -> None:
    """Raises NEVER_FITS when the pool could not hold one choice, or all beams, at full length.

    One choice alone is what the scheduler can always fall back to: it preempts the others. Beams
    are preempted all together.
    """
    prompt = len(request.token_ids.ids)
    tokens = prompt + (0 if request.score_only else room_left(request, capacity))
    # The last token's K and V are never read, so they need no slot; rounding up forgives it.
    needed, total = -(-tokens // capacity.block_tokens), capacity.num_blocks
    if request.HasField("beam"):
        total -= capacity.pin_blocks
        needed = blocks_of_beams(
            request.beam.width, tokens, prompt=prompt, block_tokens=capacity.block_tokens
        )
    if needed > total:
        raise OctavoError(NEVER_FITS, param="prompt", needed=needed, total=total)


def blocks_of_beams(width: int, num_tokens: int, *, prompt: int, block_tokens: int) -> int:
    """Returns the blocks that beams take at most when each has so many tokens.

    They share no more than the full blocks of the prompt for certain.

    Args:
        width: how many beams.
        num_tokens: of each one, the prompt's among them.
        prompt: tokens of the prompt.
        block_tokens: tokens of a block.
    """
    shared = prompt // block_tokens
    return shared + width * (-(-num_tokens // block_tokens) - shared)
