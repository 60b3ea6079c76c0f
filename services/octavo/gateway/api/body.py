"""Reads a request's body within its limits and parses it as one JSON object.

How much there is to parse is bounded first, slice by slice, so that a large body keeps the loop
from others for no longer than the parser takes for what is allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
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


async def left(receive: Receive) -> None:
    """Returns when the client has closed its connection; the body has to be read already."""
    while (await receive())["type"] != "http.disconnect":
        pass


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
    try:
        await _read_into(parts, receive, limit=limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        # What is raised holds this frame, sometimes until a collector comes along.
        parts.clear()


async def _read_into(parts: list[bytes], receive: Receive, *, limit: int) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise OctavoError(REQUEST_TOO_LARGE, limit=limit)
        parts.append(part)
        more = message.get("more_body", False)


MAX_CONTAINERS: Final = 2**16
"""Arrays and objects in one body: 64 for each prompt, and 30 ms for the parser."""

MAX_STRINGS: Final = 2**18
"""Keys and text values in one body: four for each object, and 50 ms for the parser."""

MAX_ENTRIES: Final = 2**22
"""Commas between values: 4,000 ids for each of 1,024 prompts, and 100 ms for the parser."""

_SLICE: Final = 2**18
"""Bytes that are looked at in one go: a millisecond."""

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS: Final = bytes(b for b in range(256) if b not in _STEPS)


async def parse_body(data: bytes) -> JsonObject:
    """Does the same as `parse_object`, and lets others run while it checks a large body."""
    for _ in _checked(data):
        await asyncio.sleep(0)
    return _decoded(data)


def parse_object(data: bytes) -> JsonObject:
    """Parses one JSON object; NaN and infinities are not JSON.

    Raises:
        OctavoError: INVALID_JSON or NESTED_TOO_DEEP.
    """
    check_parts(data)
    return _decoded(data)


def check_parts(data: bytes) -> None:
    """Raises INVALID_JSON or NESTED_TOO_DEEP for more, or deeper, than a parser should get.

    What is unbalanced is the parser's business unless it is deep.
    """
    for _ in _checked(data):
        pass


def _checked(data: bytes) -> Iterator[None]:
    """Does the work of `check_parts`, and yields between slices."""
    quotes = entries = brackets = depth = start = 0
    while True:
        end = _end_of_slice(data, start)
        # First what is escaped goes, then every second part lies between texts. A backslash there
        # is wrong anyway: the parser will not look beyond it.
        parts = data[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        between = b"".join(parts[quotes % 2 :: 2])
        quotes += len(parts) - 1
        entries += between.count(b",")
        steps = between.translate(None, _NO_BRACKETS)
        brackets += len(steps)
        _check_count(quotes // 2, MAX_STRINGS, "strings")
        _check_count(entries, MAX_ENTRIES, "values")
        _check_count(brackets // 2, MAX_CONTAINERS, "arrays and objects")
        depths = list(accumulate(map(_STEPS.__getitem__, steps), initial=depth))
        if max(depths) > MAX_JSON_DEPTH:
            raise OctavoError(NESTED_TOO_DEEP, limit=MAX_JSON_DEPTH)
        depth, start = depths[-1], end
        if start >= len(data):
            return
        yield


def _end_of_slice(data: bytes, start: int) -> int:
    """Returns where a slice ends without cutting an escape sequence in two."""
    end = start + _SLICE
    piece = data[start:end]
    backslashes = len(piece) - len(piece.rstrip(b"\\"))
    return end + backslashes % 2


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise OctavoError(INVALID_JSON, reason=f"it has more than {limit} {what}")


def _decoded(data: bytes) -> JsonObject:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise OctavoError(INVALID_JSON, reason=str(error)) from error
    except UnicodeDecodeError as error:
        raise OctavoError(INVALID_JSON, reason="it is not UTF-8") from error
    if not isinstance(value, dict):
        raise OctavoError(INVALID_JSON, reason="it is not an object")
    return value
