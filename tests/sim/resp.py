"""RESP2 and RESP3, the server's side: requests out of bytes, replies into bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Status:
    """A simple string."""

    text: str


@dataclass(frozen=True, slots=True)
class Error:
    """An error: its code and text."""

    text: str


Reply: TypeAlias = "Status | Error | int | bytes | list[Reply] | dict[bytes, Reply] | None"

OK = Status("OK")


class ProtocolError(Exception):
    """The bytes are no request."""


class RequestParser:
    """Collects bytes until they make requests: arrays of bulk strings."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[list[bytes]]:
        """Returns the requests that are complete now; raises ProtocolError."""
        self._buffer += data
        requests = []
        while (parsed := _parse(self._buffer)) is not None:
            request, end = parsed
            self._buffer = self._buffer[end:]
            if request:
                requests.append(request)
        return requests


def _parse(buffer: bytes) -> tuple[list[bytes], int] | None:
    header = _number(buffer, 0, b"*")
    if header is None:
        return None
    count, at = header
    request = []
    for _ in range(count):
        bulk = _number(buffer, at, b"$")
        if bulk is None:
            return None
        size, start = bulk
        at = start + size + 2
        if len(buffer) < at:
            return None
        request.append(buffer[start : start + size])
    return request, at


def _number(buffer: bytes, at: int, kind: bytes) -> tuple[int, int] | None:
    """Reads `<kind><number>CRLF`; returns the number and where it ends."""
    end = buffer.find(b"\r\n", at)
    if end < 0:
        return None
    if buffer[at : at + 1] != kind or not buffer[at + 1 : end].isdigit():
        raise ProtocolError(f"expected {kind!r}, got {buffer[at : at + 1]!r}")
    return int(buffer[at + 1 : end]), end + 2


def encode(reply: Reply, version: int) -> bytes:
    """Returns a reply as bytes of a protocol version."""
    match reply:
        case Status(text):
            return f"+{text}\r\n".encode()
        case Error(text):
            return f"-{text}\r\n".encode()
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(reply), reply)
        case None:
            return b"_\r\n" if version == 3 else b"$-1\r\n"
        case list():
            return b"*%d\r\n" % len(reply) + b"".join(encode(r, version) for r in reply)
        case dict():
            pairs = b"".join(encode(x, version) for pair in reply.items() for x in pair)
            return (
                b"%%%d\r\n" % len(reply) if version == 3 else b"*%d\r\n" % (2 * len(reply))
            ) + pairs
