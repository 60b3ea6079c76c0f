"""The fault proxy's ear for Redis: commands and replies as a whole, each reply with its command.

    tap = Tap(answer)            # async (command, reply) -> reply; may wait, change, answer b""
    Proxy(port, tap.plan)        # tap.commands lists what was asked, in order

The commands reach the server unless `tap.refuse` answers them instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tests.faults.proxy import Connection, Pipe, Plan, Way

Command: TypeAlias = list[bytes]
Answer: TypeAlias = Callable[[Command, bytes], Awaitable[bytes]]

_LINES = b"+-:(,#_"
_BULKS = b"$=!"
_LISTS = b"*~>"
_MAPS = b"%|"


def end_of(data: bytes, at: int = 0) -> int | None:
    """Returns where the value that begins at `at` ends; None while it is not whole."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        return None
    kind, after = data[at], line_end + 2
    if kind in _LINES:
        return after
    size = int(data[at + 1 : line_end])
    if kind in _BULKS:
        end = after + (size + 2 if size >= 0 else 0)
        return end if end <= len(data) else None
    if kind not in _LISTS + _MAPS:
        raise ValueError(f"not RESP: {data[at : at + 20]!r}")
    for _ in range(size * 2 if kind in _MAPS else size):
        inner = end_of(data, after)
        if inner is None:
            return None
        after = inner
    return after


def take_all(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Splits off the whole values; returns them and the rest."""
    values, at = [], 0
    while (end := end_of(buffer, at) if at < len(buffer) else None) is not None:
        values.append(buffer[at:end])
        at = end
    return values, buffer[at:]


def words(command: bytes) -> Command:
    """Returns the arguments of a command, which is an array of bulk strings."""
    parts, at = [], command.index(b"\r\n") + 2
    while at < len(command):
        end = end_of(command, at)
        assert end is not None
        parts.append(command[command.index(b"\r\n", at) + 2 : end - 2])
        at = end
    return parts


def bulk(value: bytes | None) -> bytes:
    """Returns a bulk string reply; None is the null of RESP2."""
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


async def _unchanged(command: Command, reply: bytes) -> bytes:
    return reply


def _pass_on(_: Command) -> bytes | None:
    return None


class _Asked:
    """Client to server: notes commands, answers those that are refused."""

    def __init__(self, tap: Tap, waiting: deque[Command | bytes]) -> None:
        self._tap, self._waiting, self._buffer = tap, waiting, b""

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        commands, self._buffer = take_all(self._buffer + data)
        for raw in commands:
            command = words(raw)
            self._tap.commands.append(command)
            refusal = self._tap.refuse(command)
            self._waiting.append(command if refusal is None else refusal)
            if refusal is None:
                await pipe.write(raw)
            else:
                await flush(self._waiting, pipe.connection)


class _Told:
    """Server to client: hands each reply to the tap, with its command."""

    def __init__(self, tap: Tap, waiting: deque[Command | bytes]) -> None:
        self._tap, self._waiting, self._buffer = tap, waiting, b""

    async def feed(self, data: bytes, pipe: Pipe) -> None:
        replies, self._buffer = take_all(self._buffer + data)
        for reply in replies:
            command = self._waiting.popleft()
            assert isinstance(command, list)
            told = await self._tap.answer(command, reply)
            if told:
                await pipe.write(told)
            await flush(self._waiting, pipe.connection)


async def flush(waiting: deque[Command | bytes], connection: Connection) -> None:
    """Sends refusals whose turn has come."""
    while waiting and isinstance(waiting[0], bytes):
        refusal = waiting.popleft()
        assert isinstance(refusal, bytes)
        await connection.pipes[Way.TO_CLIENT].write(refusal)


class Tap:
    """What listens to all connections of a proxy; both functions may be changed at any time.

    Args:
        answer: gets each command with its reply and returns what the client is told.
    """

    def __init__(self, answer: Answer = _unchanged) -> None:
        self.answer = answer
        self.refuse: Callable[[Command], bytes | None] = _pass_on
        """Returns the reply to a command that must not reach the server, else None."""
        self.commands: list[Command] = []

    def calm(self) -> None:
        """Changes nothing from now on."""
        self.answer, self.refuse = _unchanged, _pass_on

    def plan(self, number: int) -> Plan:
        """Returns the filters of a connection."""
        waiting: deque[Command | bytes] = deque()
        return Plan(to_server=_Asked(self, waiting), to_client=_Told(self, waiting))

    def count(self, name: bytes) -> int:
        """Returns how often a command was asked."""
        return sum(c[0].upper() == name for c in self.commands)
