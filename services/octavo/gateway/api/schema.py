"""The wire shapes of requests. Nulls are taken out before; ranges are octavo.v1's business."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from octavo.v1.errors import INVALID_VALUE, OctavoError
from octavo.v1.limits import MAX_MS, MAX_N, MAX_PRIORITY, MAX_SEED

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Signed = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class RawStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False
    """Accepted and without effect: chunks are flushed per step of the engine, not per token."""


class RawGeneration(Struct, kw_only=True):
    """What both generating endpoints take."""

    model: str = ""
    max_tokens: Count | None = None
    min_tokens: Count = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: Signed | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    bad_words: list[str] = []
    allowed_token_ids: list[int] = []
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: Annotated[int, Meta(ge=1, le=MAX_N)] = 1
    """Bounded before anything is made for each choice."""
    best_of: Count | None = None
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED)] = -1
    prompt_logprobs: Count | None = None
    stream: bool = False
    stream_options: RawStreamOptions | None = None
    priority: Signed = 0
    cache_salt: str = ""
    fairness_key: str = ""
    return_token_ids: bool = False
    max_queue_ms: Annotated[int, Meta(ge=0, le=MAX_MS)] = 0
    use_beam_search: bool = False
    beam_width: Count | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False


class RawChat(RawGeneration, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Count | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class RawCompletion(RawGeneration, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    """Text, texts, ids, or lists of ids."""
    logprobs: Count | None = None
    echo: bool = False
    add_special_tokens: bool = True


class RawTokenize(Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /tokenize`: one of prompt and messages."""

    model: str = ""
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Unset: true for a prompt, false for messages, whose template writes them."""
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}


class RawDetokenize(Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /detokenize`."""

    model: str = ""
    tokens: list[int]


T = TypeVar("T")

_PATH: Final = re.compile(r"^(?P<reason>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_FIELD: Final = re.compile(r"field `(?P<name>[^`]*)`")


def convert(body: dict[str, Any], shape: type[T]) -> T:
    """Returns the body as its shape; raises INVALID_VALUE naming the field that does not fit."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        match = _PATH.match(str(error))
        assert match is not None, "the pattern takes any text"
        reason, path = match["reason"], match["path"] or ""
        field = _FIELD.search(reason)
        if field is not None:
            path = f"{path}.{field['name']}".lstrip(".")
        reason = reason.replace(" | null", "").replace("`", "'")
        raise OctavoError(INVALID_VALUE, param=path or "body", reason=reason) from error
