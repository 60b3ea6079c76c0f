"""Chat messages as clients send them, made into what a chat template takes.

Text parts are joined, `developer` is `system`, system texts come first as one message. What else
a message holds is handed to the template, which may use it or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from octavo.gateway.api.body import check_parts
from octavo.v1.errors import INVALID_VALUE, UNSUPPORTED_PARAMETER, OctavoError

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_SYSTEM: Final = ("system", "developer")
_TEXT_PARTS: Final[Mapping[str, str]] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, and where it is."""

MAX_MESSAGES: Final = 2**14
"""Messages of one chat: eight tokens each fill the largest contexts there are, and 100 ms."""
MAX_KWARGS: Final = 32
MAX_KWARG_CHARS: Final = 1024
MAX_KWARG_NUMBER: Final = 2**31
_RESERVED: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    | {"bos_token", "eos_token", "raise_exception", "strftime_now", "namespace", "dict"}
    | {"range", "cycler", "joiner", "lipsum", "octavo_tick"}
)
"""What the template has from us or from Jinja."""


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Returns the turns for the template; raises OctavoError naming what it cannot take."""
    if not messages:
        raise _invalid("messages", "is empty")
    if len(messages) > MAX_MESSAGES:
        raise _invalid("messages", f"has {len(messages)} entries, at most {MAX_MESSAGES} can be")
    turns: list[dict[str, object]] = []
    system: list[str] = []
    for index, message in enumerate(messages):
        turn = _turn(message, f"messages[{index}]")
        if turn["role"] in _SYSTEM:
            system.append(str(turn["content"]))
        else:
            turns.append(turn)
    if system:
        turns.insert(0, {"role": "system", "content": "\n\n".join(system)})
    return turns


def template_arguments(kwargs: Mapping[str, Any]) -> dict[str, object]:
    """Checks `chat_template_kwargs`: few plain scalars under names that are free."""
    param = "chat_template_kwargs"
    if len(kwargs) > MAX_KWARGS:
        raise _invalid(param, f"has more than {MAX_KWARGS} entries")
    for name, value in kwargs.items():
        if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
            raise _invalid(param, f"the name {name[:64]!r} cannot be set")
        if isinstance(value, str):
            if len(value) > MAX_KWARG_CHARS:
                raise _invalid(f"{param}.{name}", f"is longer than {MAX_KWARG_CHARS} characters")
        elif isinstance(value, (int, float)):
            if abs(value) > MAX_KWARG_NUMBER:
                raise _invalid(f"{param}.{name}", f"is larger than {MAX_KWARG_NUMBER}")
        elif value is not None:
            raise _invalid(f"{param}.{name}", "must be text, a number, a boolean or null")
    return dict(kwargs)


def _turn(message: Mapping[str, Any], where: str) -> dict[str, object]:
    role = message.get("role")
    if role not in ROLES:
        raise _invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    turn: dict[str, object] = {k: v for k, v in message.items() if v is not None}
    turn["content"] = _text(message.get("content"), where, role=role)
    if "tool_calls" in turn:
        turn["tool_calls"] = _tool_calls(turn["tool_calls"], f"{where}.tool_calls")
    return turn


def _text(content: object, where: str, *, role: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise _invalid(f"{where}.content", "must be text or a list of parts")
    return "\n".join(_part(p, f"{where}.content[{i}]") for i, p in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _invalid(where, "must be a part with a type")
    kind = part.get("type")
    if not isinstance(kind, str):
        raise _invalid(f"{where}.type", "must be text")
    if kind not in _TEXT_PARTS:
        raise OctavoError(
            UNSUPPORTED_PARAMETER,
            param=where,
            reason=f"the model takes text, no parts of type '{kind[:64]}'",
        )
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise _invalid(f"{where}.{_TEXT_PARTS[kind]}", "must be text")
    return text


def _tool_calls(calls: object, where: str) -> list[dict[str, object]]:
    """Parses the arguments of calls in the history, because templates want them as objects."""
    if not isinstance(calls, list) or not all(isinstance(c, dict) for c in calls):
        raise _invalid(where, "must be a list of calls")
    made: list[dict[str, object]] = []
    for call in calls:
        function = call.get("function")
        if isinstance(function, dict):
            function = {**function, "arguments": _arguments(function.get("arguments"))}
            call = {**call, "function": function}
        made.append(call)
    return made


def _arguments(arguments: object) -> object:
    """Returns an object where the text is one; models do write broken arguments: they stay text."""
    if not isinstance(arguments, str):
        return arguments
    try:
        data = arguments.encode()
        check_parts(data)
        parsed = msgspec.json.decode(data)
    except (msgspec.DecodeError, OctavoError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _invalid(param: str, reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param=param, reason=reason)
