"""The data commands of the Redis model: a keyspace with TTLs, and what each command does to it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.sim.resp import OK, Error, Reply, Status

Args: TypeAlias = Sequence[bytes]
Value: TypeAlias = bytes | list[bytes] | dict[bytes, bytes]

NOT_AN_INTEGER: Final = Error("ERR value is not an integer or out of range")
SYNTAX: Final = Error("ERR syntax error")
WRONG_TYPE: Final = Error("WRONGTYPE Operation against a key holding the wrong kind of value")
_TYPES: Final[dict[type, str]] = {bytes: "string", list: "list", dict: "hash"}
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")
_LIMIT: Final = 2**63


@dataclass(slots=True)
class Entry:
    """A value and when it ends."""

    value: Value
    expires_ms: int | None = None


class Keyspace:
    """One database.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[bytes, Entry] = {}

    def now_ms(self) -> int:
        """Returns the time as Redis counts it."""
        return int(self._clock() * 1000)

    def get(self, key: bytes) -> Entry | None:
        """Returns an entry that has not ended."""
        entry = self._entries.get(key)
        if entry is None or entry.expires_ms is None or entry.expires_ms > self.now_ms():
            return entry
        del self._entries[key]
        return None

    def put(self, key: bytes, value: Value, expires_ms: int | None = None) -> None:
        """Sets an entry whatever there was."""
        self._entries[key] = Entry(value, expires_ms)

    def drop(self, key: bytes) -> bool:
        """Removes an entry; returns whether there was one."""
        return self.get(key) is not None and self._entries.pop(key, None) is not None

    def clear(self) -> None:
        """Removes all."""
        self._entries.clear()

    def live(self) -> dict[bytes, Entry]:
        """Returns all that has not ended."""
        return {k: e for k in list(self._entries) if (e := self.get(k)) is not None}


def _integer(text: bytes) -> int | None:
    if not _INTEGER.fullmatch(text) or not -_LIMIT <= int(text) < _LIMIT:
        return None
    return int(text)


def _get(space: Keyspace, args: Args) -> Reply:
    entry = space.get(args[0])
    if entry is None:
        return None
    return entry.value if isinstance(entry.value, bytes) else WRONG_TYPE


def _set(space: Keyspace, args: Args) -> Reply:
    key, value = args[:2]
    flags: set[str] = set()
    ttl: tuple[bytes, int] | None = None
    rest = list(args[2:])
    while rest:
        name = rest.pop(0).decode("latin-1").upper()
        unit_ms = 1000 if name == "EX" else 1
        # The same unit may be given twice.
        fits = "KEEPTTL" not in flags and (ttl is None or ttl[1] == unit_ms)
        if name in ("EX", "PX") and rest and fits:
            ttl = (rest.pop(0), unit_ms)
        elif name in ("NX", "XX", "GET") or (name == "KEEPTTL" and ttl is None):
            flags.add(name)
        else:
            return SYNTAX
    if {"NX", "XX"} <= flags:
        return SYNTAX
    expires_ms: int | None = None
    if ttl is not None:
        end = _expiry(space, *ttl, least=1, command="set")
        if isinstance(end, Error):
            return end
        expires_ms = end
    old = space.get(key)
    if "GET" in flags and old is not None and not isinstance(old.value, bytes):
        return WRONG_TYPE
    before = old.value if old is not None and isinstance(old.value, bytes) else None
    if ("NX" in flags and old is not None) or ("XX" in flags and old is None):
        return before if "GET" in flags else None
    if "KEEPTTL" in flags and old is not None:
        expires_ms = old.expires_ms
    space.put(key, value, expires_ms)
    return before if "GET" in flags else OK


def _expiry(space: Keyspace, text: bytes, unit_ms: int, *, least: int, command: str) -> int | Error:
    number = _integer(text)
    if number is None:
        return NOT_AN_INTEGER
    if number < least or abs(number) * unit_ms + space.now_ms() >= _LIMIT:
        return Error(f"ERR invalid expire time in '{command}' command")
    return space.now_ms() + number * unit_ms


def _expire(unit_ms: int, command: str) -> Callable[[Keyspace, Args], Reply]:
    def run(space: Keyspace, args: Args) -> Reply:
        if len(args) > 2:
            return Error(f"ERR Unsupported option {args[2].decode('latin-1')}")
        end = _expiry(space, args[1], unit_ms, least=-_LIMIT, command=command)
        if isinstance(end, Error):
            return end
        entry = space.get(args[0])
        if entry is None:
            return 0
        entry.expires_ms = end
        space.get(args[0])  # it may have ended with that
        return 1

    return run


def _ttl(unit_ms: int) -> Callable[[Keyspace, Args], Reply]:
    def run(space: Keyspace, args: Args) -> Reply:
        entry = space.get(args[0])
        if entry is None:
            return -2
        if entry.expires_ms is None:
            return -1
        return (entry.expires_ms - space.now_ms() + unit_ms // 2) // unit_ms

    return run


def _mget(space: Keyspace, args: Args) -> Reply:
    found = (_get(space, (key,)) for key in args)
    return [value if isinstance(value, bytes) else None for value in found]


def _type(space: Keyspace, args: Args) -> Reply:
    entry = space.get(args[0])
    return Status("none" if entry is None else _TYPES[type(entry.value)])


def _keys(space: Keyspace, args: Args) -> Reply:
    pattern = re.compile(fnmatch.translate(args[0].decode("latin-1")))
    return [key for key in space.live() if pattern.match(key.decode("latin-1"))]


def _scan(space: Keyspace, args: Args) -> Reply:
    if not args[0].isdigit():
        return Error("ERR invalid cursor")
    pattern = b"*"
    rest = list(args[1:])
    while rest:
        name = rest.pop(0).decode("latin-1").upper()
        if name not in ("MATCH", "COUNT") or not rest:
            return SYNTAX
        value = rest.pop(0)
        if name == "MATCH":
            pattern = value
        elif (count := _integer(value)) is None:
            return NOT_AN_INTEGER
        elif count < 1:
            return SYNTAX
    return [b"0", _keys(space, (pattern,))]


def _lpush(space: Keyspace, args: Args) -> Reply:
    entry = space.get(args[0])
    if entry is None:
        space.put(args[0], list(args[:0:-1]))
        return len(args) - 1
    if not isinstance(entry.value, list):
        return WRONG_TYPE
    entry.value[:0] = args[:0:-1]
    return len(entry.value)


def _incrby(space: Keyspace, args: Args) -> Reply:
    step = _integer(args[1])
    if step is None:
        return NOT_AN_INTEGER
    entry = space.get(args[0])
    if entry is not None and not isinstance(entry.value, bytes):
        return WRONG_TYPE
    old = 0 if entry is None or not isinstance(entry.value, bytes) else _integer(entry.value)
    if old is None:
        return NOT_AN_INTEGER
    if not -_LIMIT <= old + step < _LIMIT:
        return Error("ERR increment or decrement would overflow")
    space.put(args[0], b"%d" % (old + step), None if entry is None else entry.expires_ms)
    return old + step


def _incr(space: Keyspace, args: Args) -> Reply:
    return _incrby(space, (args[0], b"1"))


def _hset(space: Keyspace, args: Args) -> Reply:
    if len(args) % 2 == 0:
        return Error("ERR wrong number of arguments for 'hset' command")
    entry = space.get(args[0])
    if entry is None:
        space.put(args[0], {})
        entry = space.get(args[0])
    if entry is None or not isinstance(entry.value, dict):
        return WRONG_TYPE
    before = len(entry.value)
    entry.value.update(zip(args[1::2], args[2::2], strict=True))
    return len(entry.value) - before


def _hgetall(space: Keyspace, args: Args) -> Reply:
    entry = space.get(args[0])
    if entry is None:
        return {}
    return dict(entry.value) if isinstance(entry.value, dict) else WRONG_TYPE


def _dbsize(space: Keyspace, args: Args) -> Reply:
    return len(space.live())


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table of commands."""

    arity: int
    """Words with its name; negative: at least so many."""
    run: Callable[[Keyspace, Args], Reply]
    writes: bool = False
    grows: bool = False
    """Whether it is refused when memory is full."""


DATA_COMMANDS: Final = {
    "get": Command(2, _get),
    "set": Command(-3, _set, writes=True, grows=True),
    "del": Command(-2, lambda s, args: sum(s.drop(key) for key in args), writes=True),
    "exists": Command(-2, lambda s, args: sum(s.get(key) is not None for key in args)),
    "expire": Command(-3, _expire(1000, "expire"), writes=True),
    "pexpire": Command(-3, _expire(1, "pexpire"), writes=True),
    "ttl": Command(2, _ttl(1000)),
    "pttl": Command(2, _ttl(1)),
    "mget": Command(-2, _mget),
    "type": Command(2, _type),
    "keys": Command(2, _keys),
    "scan": Command(-2, _scan),
    "lpush": Command(-3, _lpush, writes=True, grows=True),
    "incr": Command(2, _incr, writes=True, grows=True),
    "incrby": Command(3, _incrby, writes=True, grows=True),
    "hset": Command(-4, _hset, writes=True, grows=True),
    "hgetall": Command(2, _hgetall),
    "dbsize": Command(1, _dbsize),
}
