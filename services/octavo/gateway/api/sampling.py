"""From a body's fields to the engine's request: sampling, stop conditions, bounds.

Only what the wire types of octavo.v1 cannot hold is checked here; ranges are checked there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo.gateway.api.schema import RawGeneration
from octavo.gateway.endpoints import ServedModel
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    INVALID_VALUE,
    TOKEN_OUT_OF_VOCABULARY,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)
from octavo.v1.limits import (
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIAS_VALUE,
    MAX_STOP_TOKEN_IDS,
)
from octavo.v1.validation import room_left

MAX_BAD_WORDS_CHARS: Final = 64 * 1024
"""Characters of all bad words together; each is encoded twice."""

_WITH_PRESENCE: Final = ("temperature", "top_p", "repetition_penalty")
_WITHOUT: Final = ("top_k", "min_p")

_EARLY_STOPPING: Final[dict[bool | str, engine_pb2.EarlyStopping.ValueType]] = {
    False: engine_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: engine_pb2.EARLY_STOPPING_WHEN_FULL,
    "never": engine_pb2.EARLY_STOPPING_NEVER,
}
_BEAM_DEFAULTS: Final = (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False))


def fill(
    request: engine_pb2.GenerateRequest,
    body: RawGeneration,
    model: ServedModel,
    *,
    read_timeout_ms: int,
    fairness_key: str = "",
) -> None:
    """Writes all fields that both endpoints share, apart from prompt, max_tokens and logprobs.

    Args:
        request: what is written.
        body: the client's words.
        model: what is to serve it.
        read_timeout_ms: how long the client waits; zero when it does not say.
        fairness_key: what a proxy said in a header. It wins over the body, so that clients behind
            the proxy cannot choose whose share they use.

    Raises:
        OctavoError: a value that no request can hold.
    """
    _fill_sampling(request.sampling, body, model)
    _fill_stop(request.stop, body, model)
    _fill_beam(request, body)
    request.model = model.engine_name
    request.n = check_choices(body)
    request.min_tokens = body.min_tokens
    if body.prompt_logprobs is not None:
        request.prompt_logprobs = body.prompt_logprobs
    request.cache_salt = body.cache_salt
    request.priority = body.priority
    request.max_queue_ms = body.max_queue_ms
    request.fairness_key = fairness_key or body.fairness_key
    if not body.stream:
        # A stream is kept alive by comments; an answer in one piece is lost when nobody waits.
        request.remaining_ms = read_timeout_ms


def check_choices(body: RawGeneration) -> int:
    """Returns n; `best_of` may only repeat it, or say how many beams it is chosen from."""
    if body.best_of not in (None, body.n) and not body.use_beam_search:
        raise _invalid("best_of", f"must equal n ({body.n}): no choice is thrown away")
    return body.n


def check_count(param: str, count: int, limit: int) -> None:
    """Raises INVALID_VALUE for a list that is too long to be looked at."""
    if count > limit:
        raise _invalid(param, f"has {count} entries, at most {limit} are allowed")


def check_ids(param: str, ids: Sequence[object], vocab_size: int) -> list[int]:
    """Returns token ids, all of the vocabulary."""
    checked: list[int] = []
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise _invalid(param, "token ids must be integers")
        if not 0 <= token < vocab_size:
            raise OctavoError(TOKEN_OUT_OF_VOCABULARY, param=param, token=token, vocab=vocab_size)
        checked.append(token)
    return checked


def clamp(
    request: engine_pb2.GenerateRequest, wanted: int | None, *, param: str, model: ServedModel
) -> int | None:
    """Sets max_tokens to what was wanted or to the room left; returns the room if it was less."""
    if wanted == 0:
        raise _invalid(param, "must be at least 1")
    request.max_tokens = 0
    room = room_left(request, model.capacity)
    if room < 1:  # the prompt alone is too long, which validation will say
        return None
    request.max_tokens = room if wanted is None else min(wanted, room)
    return room if wanted is not None and wanted > room else None


def _fill_sampling(sampling: engine_pb2.Sampling, body: RawGeneration, model: ServedModel) -> None:
    # A beam search draws nothing, so that the model's wishes for the draw do not apply.
    wishes = engine_pb2.Sampling() if body.use_beam_search else model.card.default_sampling
    if body.use_beam_search and model.card.default_sampling.HasField("repetition_penalty"):
        wishes.repetition_penalty = model.card.default_sampling.repetition_penalty
    for name in _WITH_PRESENCE:
        value = getattr(body, name)
        if value is not None:
            setattr(sampling, name, value)
        elif wishes.HasField(name):
            setattr(sampling, name, getattr(wishes, name))
    for name in _WITHOUT:
        value = getattr(body, name)
        setattr(sampling, name, getattr(wishes, name) if value is None else value)
    sampling.presence_penalty = body.presence_penalty
    sampling.frequency_penalty = body.frequency_penalty
    if body.seed >= 0:
        sampling.seed = body.seed
    vocab_size = model.capacity.vocab_size
    check_count("logit_bias", len(body.logit_bias), MAX_LOGIT_BIAS)
    for key, bias in body.logit_bias.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10:
            raise _invalid("logit_bias", f"the key {key[:64]!r} is no token id")
        token = check_ids("logit_bias", [int(key)], vocab_size)[0]
        limited = max(-MAX_LOGIT_BIAS_VALUE, min(MAX_LOGIT_BIAS_VALUE, bias))
        sampling.logit_bias.add(token_id=token, bias=limited)
    check_count("allowed_token_ids", len(body.allowed_token_ids), vocab_size)
    sampling.allowed_token_ids.extend(
        check_ids("allowed_token_ids", body.allowed_token_ids, vocab_size)
    )
    for ids in _bad_words(body.bad_words, model.tokenizer):
        sampling.bad_words.add(ids=ids)


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Returns the ids of each word as it is spelled at a text's beginning and after a space."""
    check_count("bad_words", len(words), MAX_BAD_WORDS)
    if sum(map(len, words)) > MAX_BAD_WORDS_CHARS:
        raise _invalid("bad_words", f"has more than {MAX_BAD_WORDS_CHARS} characters")
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word:
            raise _invalid("bad_words", "an entry is empty")
        for text in (word, f" {word}"):
            spellings[tuple(tokenizer.encode(text, allow_special=False))] = None
    spellings.pop((), None)
    return list(spellings)


def _fill_stop(stop: engine_pb2.Stop, body: RawGeneration, model: ServedModel) -> None:
    stop.strings.extend([body.stop] if isinstance(body.stop, str) else body.stop)
    check_count("stop_token_ids", len(body.stop_token_ids), MAX_STOP_TOKEN_IDS)
    stop.token_ids.extend(
        check_ids("stop_token_ids", body.stop_token_ids, model.capacity.vocab_size)
    )
    stop.ignore_eos = body.ignore_eos
    stop.include_in_output = body.include_stop_str_in_output


def _fill_beam(request: engine_pb2.GenerateRequest, body: RawGeneration) -> None:
    if body.use_beam_search:
        width = body.best_of if body.beam_width is None else body.beam_width
        if body.best_of not in (None, width):
            raise _invalid("best_of", f"must equal beam_width ({width}), which says the same")
        request.beam.width = body.n if width is None else width
        request.beam.length_penalty = body.length_penalty
        request.beam.early_stopping = _EARLY_STOPPING[body.early_stopping]
        return
    for name, default in _BEAM_DEFAULTS:
        if getattr(body, name) != default:
            reason = "it needs use_beam_search: true"
            raise OctavoError(UNSUPPORTED_PARAMETER, param=name, reason=reason)


def _invalid(param: str, reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param=param, reason=reason)
