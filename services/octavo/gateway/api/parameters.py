"""The published table of parameters: what is honoured, what is harmless, what is refused.

Null is always allowed. A refused parameter may carry its default, because that changes nothing.
A name that is not in the table is refused, so that nothing is ignored in silence.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from octavo.v1.errors import UNSUPPORTED_PARAMETER, OctavoError

Kind = Literal["honoured", "harmless", "refused"]
Endpoint = Literal["chat", "completions"]

BOTH: Final = frozenset[Endpoint]({"chat", "completions"})
CHAT: Final = frozenset[Endpoint]({"chat"})
COMPLETIONS: Final = frozenset[Endpoint]({"completions"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table."""

    name: str
    kind: Kind
    endpoints: frozenset[Endpoint] = BOTH
    note: str = ""
    """For a refused one: why."""
    defaults: tuple[object, ...] = ()
    """Values that are accepted although the parameter is refused."""


def _rows(
    kind: Kind, endpoints: frozenset[Endpoint], names: str, note: str = "", *defaults: object
) -> list[Parameter]:
    return [Parameter(name, kind, endpoints, note, defaults) for name in names.split()]


_NOT_BUILT: Final = "this release does not have it"
_NO_MEDIA: Final = "the model takes and gives text only"
_NO_GRAMMAR: Final = "structured output is not in this release"
_NO_TOOLS: Final = "tool calling is not in this release"

_ROWS: Final = [
    *_rows("honoured", BOTH, "model max_tokens min_tokens temperature top_p top_k min_p"),
    *_rows("honoured", BOTH, "repetition_penalty presence_penalty frequency_penalty logit_bias"),
    *_rows("honoured", BOTH, "bad_words allowed_token_ids stop stop_token_ids ignore_eos"),
    *_rows("honoured", BOTH, "include_stop_str_in_output n best_of seed logprobs"),
    *_rows("honoured", BOTH, "prompt_logprobs stream stream_options priority cache_salt"),
    *_rows("honoured", BOTH, "return_token_ids max_queue_ms fairness_key"),
    *_rows("honoured", BOTH, "use_beam_search beam_width length_penalty early_stopping"),
    *_rows("honoured", CHAT, "messages max_completion_tokens top_logprobs"),
    *_rows("honoured", CHAT, "add_generation_prompt continue_final_message chat_template_kwargs"),
    *_rows("honoured", COMPLETIONS, "prompt echo add_special_tokens"),
    # What cannot change the text.
    *_rows("harmless", BOTH, "user safety_identifier metadata client_metadata service_tier"),
    *_rows("harmless", BOTH, "prompt_cache_key prompt_cache_retention request_id include"),
    *_rows("harmless", BOTH, "context_management cache_control eager_input_streaming prediction"),
    *_rows("harmless", BOTH, "spaces_between_special_tokens include_reasoning stream_reasoning"),
    # Wishes for abilities that the model does not have.
    *_rows("harmless", CHAT, "thinking reasoning reasoning_effort reasoning_format effort"),
    *_rows("harmless", CHAT, "verbosity parallel_tool_calls"),
    *_rows("refused", BOTH, "store", "answers are not kept", False),
    *_rows("refused", BOTH, "previous_response_id conversation", "answers are not kept"),
    *_rows("refused", CHAT, "tools functions", _NO_TOOLS, [], {}),
    *_rows("refused", CHAT, "tool_choice function_call", _NO_TOOLS, "none", "auto"),
    *_rows("refused", BOTH, "response_format", _NO_GRAMMAR, {"type": "text"}, {}),
    *_rows("refused", BOTH, "structured_outputs guided_json guided_regex", _NO_GRAMMAR, {}),
    *_rows("refused", BOTH, "guided_choice guided_grammar", _NO_GRAMMAR, []),
    *_rows("refused", BOTH, "guided_decoding_backend structural_tag grammar", _NO_GRAMMAR),
    *_rows("refused", BOTH, "regex ebnf json_schema", _NO_GRAMMAR),
    *_rows("refused", CHAT, "modalities", _NO_MEDIA, ["text"]),
    *_rows("refused", CHAT, "audio mm_processor_kwargs", _NO_MEDIA, {}),
    *_rows("refused", CHAT, "web_search_options documents", _NOT_BUILT, []),
    *_rows("refused", CHAT, "chat_template", "templates come with the model only"),
    *_rows("refused", CHAT, "echo", "it belongs to /v1/completions", False),
    *_rows("refused", CHAT, "add_special_tokens", "the chat template writes them", False),
    *_rows("refused", BOTH, "suffix", "the model cannot fill in the middle", ""),
    *_rows("refused", BOTH, "truncate_prompt_tokens", "a prompt is never cut"),
    *_rows("refused", BOTH, "prompt_embeds", "prompts are text or token ids"),
    *_rows("refused", BOTH, "skip_special_tokens", "control tokens never show in text", True),
    *_rows("refused", BOTH, "return_tokens_as_token_ids", "see return_token_ids", False),
    *_rows("refused", BOTH, "detokenize", "see return_token_ids", True),
    *_rows("refused", BOTH, "typical_p tfs_z", _NOT_BUILT, 1, 1.0),
    *_rows("refused", BOTH, "top_a mirostat", _NOT_BUILT, 0, 0.0),
    *_rows("refused", BOTH, "kv_transfer_params vllm_xargs logits_processors", _NOT_BUILT, {}, []),
]

PARAMETERS: Final[Mapping[Endpoint, Mapping[str, Parameter]]] = {
    endpoint: {row.name: row for row in _ROWS if endpoint in row.endpoints} for endpoint in BOTH
}
"""The table of each endpoint by name."""


def sort_out(
    body: Mapping[str, Any], endpoint: Endpoint, *, strict: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Splits a body by the table.

    Args:
        body: the request as it came.
        endpoint: the table's column.
        strict: refuse what is harmless as well, unless it is null or the default.

    Returns:
        The honoured parameters that are not null, and the names of those without effect: of the
        table only, so that neither a header nor a metric holds a caller's words.

    Raises:
        OctavoError: UNSUPPORTED_PARAMETER for what would change the answer.
    """
    honoured: dict[str, Any] = {}
    ignored: list[str] = []
    no_tools = body.get("tool_choice") == "none"
    rows = PARAMETERS[endpoint]
    for name, value in body.items():
        row = rows.get(name)
        if row is not None and row.kind == "honoured":
            if value is not None:
                honoured[name] = value
            continue
        if row is None:
            if value is not None:
                raise _unknown(name, rows)
            continue
        if value is not None and not (no_tools and name in ("tools", "functions")):
            _check(row, value, strict=strict)
        ignored.append(name)
    return honoured, tuple(ignored)


def _check(row: Parameter, value: object, *, strict: bool) -> None:
    """Raises unless a value, not null, may be ignored."""
    if row.kind == "refused" and not _is_default(value, row.defaults):
        raise _unsupported(row.name, row.note)
    if row.kind == "harmless" and strict:
        raise _unsupported(row.name, "it has no effect here, and the request asks for strictness")


def _unknown(name: str, known: Iterable[str]) -> OctavoError:
    near = difflib.get_close_matches(name[:64], known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return _unsupported(name, f"this endpoint does not know it{hint}")


def _is_default(value: object, defaults: tuple[object, ...]) -> bool:
    # True equals 1 in Python, but not in JSON.
    return any(value == d and isinstance(value, bool) == isinstance(d, bool) for d in defaults)


def _unsupported(name: str, reason: str) -> OctavoError:
    return OctavoError(UNSUPPORTED_PARAMETER, param=name[:64], reason=reason)
