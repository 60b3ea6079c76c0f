"""The fault proxy's ear for HTTP/2: whole frames, which can be counted, dropped and injected.

    tap = FrameTap(on_frame)     # async (way, frame, pipe) -> whether to pass it on
    Proxy(port, tap.plan)
    await connection.pipes[Way.TO_CLIENT].write(goaway())      # always between two frames

Headers stay opaque: nothing here needs HPACK.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from tests.faults.proxy import Pipe, Plan, Way

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD = 9


class Kind(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    def encode(self) -> bytes:
        """Returns its bytes."""
        size = len(self.payload)
        head = struct.pack(">BHBBI", size >> 16, size & 0xFFFF, self.kind, self.flags, self.stream)
        return head + self.payload


def goaway(code: int = 0, last_stream: int = 2**31 - 1) -> bytes:
    """Returns a GOAWAY: open streams live on, no new ones."""
    return Frame(Kind.GOAWAY, 0, 0, struct.pack(">II", last_stream, code)).encode()


def rst_stream(stream: int, code: int = 2) -> bytes:
    """Returns a reset of one stream, by default an internal error."""
    return Frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", code)).encode()


OnFrame: TypeAlias = Callable[[Way, Frame, Pipe], Awaitable[bool]]


async def _pass_on(way: Way, frame: Frame, pipe: Pipe) -> bool:
    return True


class _Frames:
    """One direction: whole frames go to the tap, and on if it says so."""

    def __init__(self, tap: FrameTap, way: Way) -> None:
        self._tap, self._way = tap, way
        self._buffer = b""
        self._preface = len(_PREFACE) if way is Way.TO_SERVER else 0

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        self._buffer += data
        if self._preface:
            if len(self._buffer) < self._preface:
                return
            head, self._buffer = self._buffer[: self._preface], self._buffer[self._preface :]
            self._preface = 0
            await pipe.write(head)
        while (frame := self._take()) is not None:
            self._tap.seen[self._way, frame.kind] += 1
            if await self._tap.on_frame(self._way, frame, pipe):
                await pipe.write(frame.encode())

    def _take(self) -> Frame | None:
        if len(self._buffer) < _HEAD:
            return None
        high, low, kind, flags, stream = struct.unpack(">BHBBI", self._buffer[:_HEAD])
        end = _HEAD + (high << 16 | low)
        if len(self._buffer) < end:
            return None
        payload, self._buffer = self._buffer[_HEAD:end], self._buffer[end:]
        return Frame(kind, flags, stream, payload)


class FrameTap:
    """What listens to all connections of a proxy.

    Args:
        on_frame: tells whether a frame may pass; may wait, or write to the pipe itself.
    """

    def __init__(self, on_frame: OnFrame = _pass_on) -> None:
        self.on_frame = on_frame
        self.seen: Counter[tuple[Way, int]] = Counter()

    def plan(self, number: int) -> Plan:
        """Returns the filters of a connection."""
        return Plan(to_server=_Frames(self, Way.TO_SERVER), to_client=_Frames(self, Way.TO_CLIENT))
