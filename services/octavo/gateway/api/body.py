"""Reads a request's body within its limits and parses it as one JSON object."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from itertools import accumulate
from typing import Any, Final

import msgspec

from octavo.gateway.api.headers import Scope, header
from octavo.v1.errors import (
    INVALID_JSON,
    NESTED_TOO_DEEP,
    REQUEST_TOO_LARGE,
    OctavoError,
)
from octavo.v1.limits import MAX_JSON_DEPTH

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
JsonObject = dict[str, Any]


class ClientGoneError(Exception):
    """The client has closed its connection: nobody is left to answer."""


async def read_body(scope: Scope, receive: Receive, *, limit: int) -> bytes:
    """Returns the whole body.

    Raises:
        OctavoError: REQUEST_TOO_LARGE as soon as the limit is passed, announced or read.
        ClientGoneError: the client left.
    """
    length = header(scope, b"content-length")
    if length.isdigit() and int(length) > limit:
        raise OctavoError(REQUEST_TOO_LARGE, limit=limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise OctavoError(REQUEST_TOO_LARGE, limit=limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_object(data: bytes) -> JsonObject:
    """Parses one JSON object; NaN and infinities are not JSON.

    Raises:
        OctavoError: INVALID_JSON or NESTED_TOO_DEEP.
    """
    check_depth(data)
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise OctavoError(INVALID_JSON, reason=str(error)) from error
    except UnicodeDecodeError as error:
        raise OctavoError(INVALID_JSON, reason="it is not UTF-8") from error
    if not isinstance(value, dict):
        raise OctavoError(INVALID_JSON, reason="it is not an object")
    return value


MAX_CONTAINERS: Final = 2**18
"""Arrays and objects in one body: 256 for each prompt, and 20 ms of looking at their brackets."""

_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(b for b in range(256) if b not in _STEPS)


def check_depth(data: bytes) -> None:
    """Raises NESTED_TOO_DEEP for JSON that is nested too deep for any recursive parser.

    Strings are taken out first; what is unbalanced is the parser's business unless it is deep.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return
    brackets = _STRING.sub(b"", data).translate(None, _NO_BRACKETS)
    if len(brackets) > 2 * MAX_CONTAINERS:
        reason = f"it has more than {MAX_CONTAINERS} arrays and objects"
        raise OctavoError(INVALID_JSON, reason=reason)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > MAX_JSON_DEPTH:
        raise OctavoError(NESTED_TOO_DEEP, limit=MAX_JSON_DEPTH)
