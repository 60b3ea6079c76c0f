"""What a model says about its own use: sampling defaults, end tokens, chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from octavo.engine.models.fields import Fields, UnreadableError, shown
from octavo.v1 import limits

_DEFAULTS: Final[Mapping[str, Callable[[float], bool]]] = {
    "temperature": lambda v: 0.0 <= v <= limits.MAX_TEMPERATURE,
    "top_p": lambda v: 0.0 < v <= 1.0,
    "top_k": lambda v: v == int(v) and -1 <= v < 2**31,
    "min_p": lambda v: 0.0 <= v <= 1.0,
    "repetition_penalty": lambda v: 0.0 < v <= 1e6,
}
_GGUF_KEYS: Final = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def sampling_from_json(fields: Fields) -> dict[str, float]:
    """Returns the sampling defaults of a generation_config.json."""
    return _sampling(fields, {name: name for name in _DEFAULTS})


def sampling_from_gguf(fields: Fields) -> dict[str, float]:
    """Returns the sampling defaults among GGUF metadata."""
    return _sampling(fields, _GGUF_KEYS)


def token_ids(fields: Fields, name: str, vocab_size: int) -> tuple[int, ...]:
    """Returns the ids of a field that holds one id or a list of them; empty when absent."""
    value = fields.get(name, [])
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise UnreadableError(
                f"{name} has {shown(token)}, which is no token id below {vocab_size}"
            )
    return tuple(dict.fromkeys(ids))


def template_of(fields: Fields) -> str:
    """Returns the chat template of a tokenizer_config.json, of several the one named "default"."""
    value = fields.get("chat_template", "")
    if isinstance(value, list):
        named = [Fields(v) for v in value if isinstance(v, dict)]
        value = next((f.get("template", "") for f in named if f.get("name") == "default"), "")
    if not isinstance(value, str):
        raise UnreadableError("chat_template is neither text nor a list of named texts")
    return value


def _sampling(fields: Fields, keys: Mapping[str, str]) -> dict[str, float]:
    found = {name: fields.number(key) for name, key in keys.items() if key in fields}
    for name, value in found.items():
        if not _DEFAULTS[name](value):
            raise UnreadableError(f"{keys[name]} = {shown(value)} is outside its range")
    # GGUF holds float32: 0.7 comes as 0.699999988079071
    rounded = {name: float(f"{value:.7g}") for name, value in found.items()}
    if "top_k" in rounded:
        rounded["top_k"] = int(rounded["top_k"])
    return rounded


class _Processor(msgspec.Struct):
    type: str = ""
    single: list[dict[str, object]] = []
    processors: list[_Processor] = []


class _TokenizerFile(msgspec.Struct):
    post_processor: _Processor | None = None


def template_begins_with_token(tokenizer_json: bytes) -> bool:
    """Returns whether the post-processor of a tokenizer.json puts a token before a text.

    Raises:
        UnreadableError: it is no tokenizer.json.
    """
    try:
        processor = msgspec.json.decode(tokenizer_json, type=_TokenizerFile).post_processor
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableError(f"tokenizer.json is not one: {error}") from error
    steps = [processor, *processor.processors] if processor else []
    return any("SpecialToken" in step.single[0] for step in steps if step.single)
