"""Which block holds which content, and what the outside has to be told about it.

An entry is pending from the moment its block is allocated until the step that fills the block has
succeeded: it can be found at once, so that equal prompts of one step share, but only a published
entry is an event. Knows nothing of reference counts and requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.engine.block_manager import BlockId, check
from octavo.v1.block_hash import BlockHash

NO_PARENT = BlockHash(b"")
"""The parent of a prefix's first block, as octavo.v1 writes it."""


@dataclass(slots=True)
class _Entry:
    """All blocks with one content; two requests that compute the same keep a block each."""

    parent: BlockHash
    blocks: dict[BlockId, None] = field(default_factory=dict)
    """Oldest first."""


class HashIndex:
    """The map between hashes and blocks, both ways."""

    def __init__(self) -> None:
        self._entries: dict[BlockHash, _Entry] = {}
        self._hashes: dict[BlockId, BlockHash] = {}
        self._pending: dict[BlockId, None] = {}
        # The net change since the last drain: a hash is in one of the two at most.
        self._stored: dict[BlockHash, BlockHash] = {}
        self._removed: dict[BlockHash, None] = {}
        self._cleared = False

    def __len__(self) -> int:
        return len(self._hashes)

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._hashes)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._hashes

    def find(self, hash_: BlockHash) -> BlockId | None:
        """Returns a block with this content, the oldest one, or None."""
        entry = self._entries.get(hash_)
        return None if entry is None else next(iter(entry.blocks))

    def parent_of(self, hash_: BlockHash) -> BlockHash | None:
        """Returns the parent of a hash that is published, else None."""
        entry = self._entries.get(hash_)
        return entry.parent if entry is not None and self._is_published(entry) else None

    def entry(self, block: BlockId) -> tuple[BlockHash, BlockHash] | None:
        """Returns (hash, parent) of what the block holds, or will hold; None: nothing known."""
        hash_ = self._hashes.get(block)
        return None if hash_ is None else (hash_, self._entries[hash_].parent)

    def is_pending(self, block: BlockId) -> bool:
        """Tells whether the block's content comes only with the present step."""
        return block in self._pending

    def add(self, block: BlockId, hash_: BlockHash, parent: BlockHash) -> None:
        """Registers what the block will hold when the present step has succeeded."""
        self._hashes[block] = hash_
        self._pending[block] = None
        entry = self._entries.get(hash_)
        if entry is None:
            entry = self._entries[hash_] = _Entry(parent)
        entry.blocks[block] = None

    def remove(self, block: BlockId) -> None:
        """Drops the entry of this block; other blocks with the same content keep theirs."""
        hash_ = self._hashes.pop(block)
        entry = self._entries[hash_]
        del entry.blocks[block]
        if block in self._pending:
            del self._pending[block]
        elif not self._is_published(entry) and self._stored.pop(hash_, None) is None:
            self._removed[hash_] = None
        if not entry.blocks:
            del self._entries[hash_]

    def publish(self) -> None:
        """The step succeeded: pending entries become published ones."""
        for block in list(self._pending):
            self._publish(block)

    def insert(self, block: BlockId, hash_: BlockHash, parent: BlockHash) -> None:
        """Registers and publishes what the block holds already."""
        self.add(block, hash_, parent)
        self._publish(block)

    def revoke(self) -> list[BlockId]:
        """The step failed: drops pending entries and returns their blocks."""
        blocks = list(self._pending)
        for block in blocks:
            self.remove(block)
        return blocks

    def clear(self) -> None:
        """Drops everything; the outside is told so instead of hearing of each hash."""
        for collection in (self._entries, self._hashes, self._pending, self._stored, self._removed):
            collection.clear()
        self._cleared = True

    def snapshot(self) -> list[tuple[BlockHash, BlockHash]]:
        """Returns (hash, parent) of all that is published, in no particular order."""
        return [(h, e.parent) for h, e in self._entries.items() if self._is_published(e)]

    def drain_events(self) -> tuple[list[tuple[BlockHash, BlockHash]], list[BlockHash], bool]:
        """Returns the net change since the last call.

        Returns:
            (hash, parent) of what became hittable, hashes that no block holds any more, and whether
            all that was known before is void. No hash is in both lists.
        """
        events = list(self._stored.items()), list(self._removed), self._cleared
        self._stored.clear()
        self._removed.clear()
        self._cleared = False
        return events

    def check_integrity(self) -> None:
        """Raises IntegrityError unless both directions agree."""
        listed = [(b, h) for h, e in self._entries.items() for b in e.blocks]
        check(dict(listed) == self._hashes, "hash entries and blocks with a hash differ")
        check(len(listed) == len(self._hashes), "a block is listed under two hashes")
        check(all(e.blocks for e in self._entries.values()), "a hash entry has no block")
        check(self._pending.keys() <= self._hashes.keys(), "a pending block has no hash")
        check(not self._stored.keys() & self._removed.keys(), "a hash is both stored and removed")

    def _publish(self, block: BlockId) -> None:
        hash_ = self._hashes[block]
        entry = self._entries[hash_]
        was_published = self._is_published(entry)
        del self._pending[block]
        if was_published:
            return
        if hash_ in self._removed:
            del self._removed[hash_]
        else:
            self._stored[hash_] = entry.parent

    def _is_published(self, entry: _Entry) -> bool:
        return any(block not in self._pending for block in entry.blocks)
