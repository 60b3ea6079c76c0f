"""The file of prefixes that are pinned at the start: JSON, a line each. Text in, messages out.

    {"messages": [{"role": "system", "content": "You are ..."}]}
    {"text": "Once upon a time", "cache_salt": "tales", "ttl_s": 3600}
    {"token_ids": [1, 2, 3]}

Does not know the model, so whether a prefix can be pinned shows later.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from octavo.v1 import engine_pb2, limits
from octavo.v1.errors import BAD_SETTING, OctavoError

_MAX_TOKEN = 2**32 - 1


def read_pins(path: Path) -> list[tuple[int, engine_pb2.PinPrefixRequest]]:
    """Returns (line, prefix) of each line that is not empty; raises BAD_SETTING naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise bad_pins(path, str(error)) from error
    pins = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                pins.append((number, parse_pin(line)))
            except ValueError as error:
                raise bad_pins(path, f"line {number}: {error}") from error
    return pins


def bad_pins(path: Path, reason: str) -> OctavoError:
    """Returns the error of a start that this file stops."""
    return OctavoError(
        BAD_SETTING, key="pin_prefix", value=str(path), origin="engine", reason=reason
    )


def parse_pin(line: str) -> engine_pb2.PinPrefixRequest:
    """Returns one line's prefix; raises ValueError when it is none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("is no JSON object")
    if unknown := sorted(fields.keys() - _FIELDS.keys()):
        raise ValueError(f"{unknown[0]} is no field; there are {', '.join(_FIELDS)}")
    if len(fields.keys() & _PREFIXES.keys()) != 1:
        raise ValueError(f"must have one of {', '.join(_PREFIXES)}")
    pin = engine_pb2.PinPrefixRequest()
    for name, value in fields.items():
        _FIELDS[name](pin, value)
    return pin


def _messages(pin: engine_pb2.PinPrefixRequest, value: object) -> None:
    if not isinstance(value, list):
        raise ValueError("messages must be a list")
    pin.messages.SetInParent()
    for message in value:
        if not isinstance(message, dict) or message.keys() != {"role", "content"}:
            raise ValueError("a message must have role and content, and nothing else")
        role, content = _string("role", message["role"]), _string("content", message["content"])
        pin.messages.messages.add(role=role, content=content)


def _text(pin: engine_pb2.PinPrefixRequest, value: object) -> None:
    pin.text = _string("text", value)


def _token_ids(pin: engine_pb2.PinPrefixRequest, value: object) -> None:
    pin.token_ids.SetInParent()
    for token in value if isinstance(value, list) else [value]:
        if type(token) is not int or not 0 <= token <= _MAX_TOKEN:
            raise ValueError("token_ids must be a list of numbers")
        pin.token_ids.ids.append(token)


def _cache_salt(pin: engine_pb2.PinPrefixRequest, value: object) -> None:
    pin.cache_salt = _string("cache_salt", value)


def _ttl_s(pin: engine_pb2.PinPrefixRequest, value: object) -> None:
    most = limits.MAX_MS / 1e3
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ValueError(f"ttl_s must be a number of seconds up to {most:.0f}")
    pin.ttl_ms = max(1, round(1e3 * value))


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string")
    return value


_Fill = Callable[[engine_pb2.PinPrefixRequest, object], None]
_PREFIXES: Final[dict[str, _Fill]] = {
    "messages": _messages,
    "text": _text,
    "token_ids": _token_ids,
}
_FIELDS: Final = _PREFIXES | {"cache_salt": _cache_salt, "ttl_s": _ttl_s}
