"""The tier on disk: which blocks it holds, what is being written and read, and for whom.

All decisions and no I/O: somebody else does the work and says later how it went, so nothing here
ever waits. A write that finds no room in the work queue is dropped; a read that fails or takes too
long means that the request computes. Knows no slots and no device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from octavo.engine.block_manager import check
from octavo.engine.request import RequestId
from octavo.v1.block_hash import BlockHash

LOAD_S: Final = 2.0
"""A request waits for its blocks no longer than this; a disk that hangs is no reason to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a write or a read went."""

    ticket: int
    hash_: BlockHash
    ok: bool
    page: bytes = b""
    """What was read."""


class DiskIo(Protocol):
    """Does the work: a thread in production, a list in tests. Nothing here waits or raises.

    Writes and removals are done in order; reads may overtake them.
    """

    def has_room(self) -> bool:
        """Tells whether one more write or read may be asked for."""
        ...

    def write(self, ticket: int, hash_: BlockHash, parent: BlockHash, page: bytes) -> None:
        """Asks for a block to be written."""
        ...

    def read(self, ticket: int, hash_: BlockHash, parent: BlockHash) -> None:
        """Asks for a block to be read; one that is not what it should be is removed."""
        ...

    def remove(self, hash_: BlockHash, parent: BlockHash) -> None:
        """Asks for a block to be removed."""
        ...

    def clear(self) -> None:
        """Asks for all blocks to be removed, and forgets what has not been written yet."""
        ...

    def drain(self) -> list[Done]:
        """Returns what has been done since the last call."""
        ...


@dataclass(frozen=True, slots=True)
class _Wish:
    """Blocks that a waiting request has asked for."""

    hashes: tuple[BlockHash, ...]
    since: float


class DiskTier:
    """Owns the index of the disk.

    Args:
        io: does the work.
        capacity: blocks that are kept at most.
        held: (hash, parent) of the blocks that are there, least recently used first.
    """

    def __init__(
        self, io: DiskIo, capacity: int, held: Iterable[tuple[BlockHash, BlockHash]] = ()
    ) -> None:
        self.num_written = self.num_read = 0
        self.num_failed = 0
        """Writes and reads that went wrong or found no room in the work queue."""
        self._io = io
        self._capacity = capacity
        self._held = dict(held)
        self._writing: dict[BlockHash, tuple[int, BlockHash]] = {}  # ticket and parent
        self._reading: dict[BlockHash, int] = {}
        self._wishes: dict[RequestId, _Wish] = {}
        self._tickets = itertools.count(1)
        self._changed: dict[BlockHash, None] = dict.fromkeys(self._held)
        self._make_room(0)

    def __len__(self) -> int:
        return len(self._held)

    @property
    def num_reading(self) -> int:
        """Blocks that are being read."""
        return len(self._reading)

    def parent_of(self, hash_: BlockHash) -> BlockHash | None:
        """Returns the parent of a hash that is held, else None."""
        return self._held.get(hash_)

    def snapshot(self) -> list[tuple[BlockHash, BlockHash]]:
        """Returns (hash, parent) of all that is held."""
        return list(self._held.items())

    def save(self, hash_: BlockHash, parent: BlockHash, page: Callable[[], bytes]) -> None:
        """Writes a block that the tier above gives up, unless it is here or there is no room.

        Args:
            hash_: the block.
            parent: the block before it.
            page: makes the copy of its content, only if it is going to be written.
        """
        if hash_ in self._held:
            self._held[hash_] = self._held.pop(hash_)  # used lately
            return
        if hash_ in self._writing:
            return
        if not self._io.has_room() or not self._make_room(1):
            self.num_failed += 1
            return
        ticket = next(self._tickets)
        self._writing[hash_] = ticket, parent
        self._io.write(ticket, hash_, parent, page())

    def has_asked(self, request_id: RequestId) -> bool:
        """Tells whether the request has asked since it began to wait."""
        return request_id in self._wishes

    def ask(self, request_id: RequestId, hashes: Iterable[BlockHash], now: float) -> None:
        """Begins to read blocks, all of which are held, for a request."""
        wanted: list[BlockHash] = []
        for hash_ in hashes:
            if hash_ not in self._reading:
                if not self._io.has_room():
                    self.num_failed += 1
                    break
                self._reading[hash_] = next(self._tickets)
                self._held[hash_] = parent = self._held.pop(hash_)
                self._io.read(self._reading[hash_], hash_, parent)
            wanted.append(hash_)
        self._wishes[request_id] = _Wish(tuple(wanted), now)

    def is_loading(self, request_id: RequestId, now: float) -> bool:
        """Tells whether it is worth waiting for blocks that the request has asked for."""
        wish = self._wishes[request_id]
        return now < wish.since + LOAD_S and any(h in self._reading for h in wish.hashes)

    def discard(self, request_id: RequestId) -> None:
        """The request does not wait any more; what is being read goes on."""
        self._wishes.pop(request_id, None)

    def poll(self) -> list[tuple[BlockHash, BlockHash, bytes]]:
        """Takes notice of what has been done; returns (hash, parent, page) of what was read."""
        pages: list[tuple[BlockHash, BlockHash, bytes]] = []
        for done in self._io.drain():
            ticket, parent = self._writing.get(done.hash_, (0, None))
            if ticket == done.ticket and parent is not None:
                del self._writing[done.hash_]
                self._end_write(done, parent)
            elif self._reading.get(done.hash_) == done.ticket:
                del self._reading[done.hash_]
                if done.ok and done.hash_ in self._held:
                    self.num_read += 1
                    pages.append((done.hash_, self._held[done.hash_], done.page))
                else:
                    self.num_failed += 1
                    self.forget(done.hash_)
        return pages

    def forget(self, hash_: BlockHash) -> None:
        """Removes a block, also one that is still to be written."""
        _, parent = self._writing.pop(hash_, (0, None))
        held = self._held.pop(hash_, None)
        self._reading.pop(hash_, None)
        parent = held if parent is None else parent
        if parent is not None:
            self._changed[hash_] = None
            self._io.remove(hash_, parent)

    def clear(self) -> None:
        """Removes everything."""
        for collection in (self._held, self._writing, self._reading, self._changed):
            collection.clear()
        self._io.clear()

    def drain_changes(self) -> list[BlockHash]:
        """Returns the hashes that came or went since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def check_integrity(self) -> None:
        """Raises IntegrityError unless the index is within its bound and agrees with itself."""
        held, writing = self._held.keys(), self._writing.keys()
        check(len(held) + len(writing) <= self._capacity, "the disk holds more than it may")
        check(not held & writing, "a block is on disk and is being written")
        check(self._reading.keys() <= held, "a block is read that is not there")

    def _end_write(self, done: Done, parent: BlockHash) -> None:
        if done.ok:
            self.num_written += 1
            self._held[done.hash_] = parent
            self._changed[done.hash_] = None
        else:
            self.num_failed += 1

    def _make_room(self, more: int) -> bool:
        """Gives up the blocks unused for longest; False if what is being written fills all."""
        while len(self._held) + len(self._writing) + more > self._capacity:
            if not self._held:
                return False
            self.forget(next(iter(self._held)))
        return True
