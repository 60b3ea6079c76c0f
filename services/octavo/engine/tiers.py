"""The pool and what lies below it as one: blocks go down when they are evicted and come back up.

Knows of requests only that they have blocks or slots.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence

from octavo.engine.block_manager import BlockId, BlockManager
from octavo.engine.hash_index import HashIndex
from octavo.engine.host_tier import Entry, HostTier
from octavo.engine.request import RequestId
from octavo.engine.tier_events import TierEvents
from octavo.v1.block_hash import BlockHash


class Tiers:
    """Takes blocks of the pool, with their content saved and restored.

    Args:
        blocks: the pool.
        index: what its blocks hold.
        host: the tier below.
    """

    def __init__(self, blocks: BlockManager, index: HashIndex, host: HostTier) -> None:
        self._blocks = blocks
        self._index = index
        self._host = host
        self._events = TierEvents()

    def take(self) -> BlockId:
        """Takes a block and evicts what it held to the tier below."""
        block = self._blocks.take()
        entry = self._index.entry(block)
        if entry is not None:
            if not self._index.is_pending(block):
                self._host.save(block, *entry)
            self._index.remove(block)
        self._host.reuse(block)
        return block

    def restore(self, slot: BlockId) -> BlockId:
        """Takes a block that gets the slot's content; a hash of it is pending until the commit."""
        block = self.take()
        self._host.restore(slot, block)
        entry = self._host.entry(slot)
        if entry is not None:
            self._index.add(block, *entry)
            self._blocks.keep(block)
        return block

    def hold_hits(self, hashes: Iterable[BlockHash]) -> list[BlockId]:
        """Returns the slots of the first hashes, up to a miss; held until the step has ended."""
        slots: list[BlockId] = []
        for hash_ in hashes:
            slot = self._host.find(hash_)
            if slot is None:
                break
            self._host.hold(slot)
            slots.append(slot)
        return slots

    def swap_out(
        self, tables: Mapping[RequestId, Sequence[BlockId]], copied: Container[BlockId]
    ) -> bool:
        """Gives requests slots with the content of their blocks, which stay theirs.

        Args:
            tables: blocks of each request.
            copied: targets of the step's copies.

        Returns:
            False, with nothing changed, without room or if a block's content is neither there when
            the step begins nor in a slot.
        """
        for block in itertools.chain(*tables.values()):
            unwritten = self._index.is_pending(block) or block in copied
            if unwritten and not self._host.has_image(block):
                return False
        return self._host.swap_out(
            {i: [(b, self._index.entry(b)) for b in blocks] for i, blocks in tables.items()}
        )

    def swap_in(
        self, request_id: RequestId, hits: Sequence[BlockId], restored: dict[BlockId, BlockId]
    ) -> list[BlockId]:
        """Ends a swap and returns the blocks of what was swapped, in order.

        Args:
            request_id: whose.
            hits: blocks that hold the first of it already.
            restored: for each slot that others of its group have brought back, its block.
        """
        for block in hits:
            self._blocks.share(block)
        table = list(hits)
        for slot in self._host.take_swapped(request_id)[len(hits) :]:
            known = restored.get(slot)
            if known is None:
                known = self._find(self._host.entry(slot))
            if known is None:
                known = self.restore(slot)
            else:
                self._blocks.share(known)
            restored[slot] = known
            table.append(known)
        return table

    def blocks_to_swap_in(self, request_ids: Iterable[RequestId]) -> int:
        """Returns how many available blocks `swap_in` takes for all of a group."""
        slots = {slot for i in request_ids for slot in self._host.swapped(i)}
        found = (self._find(self._host.entry(slot)) for slot in slots)
        return sum(1 for b in found if b is None or self._blocks.references(b) == 0)

    def _find(self, entry: Entry | None) -> BlockId | None:
        return None if entry is None else self._index.find(entry[0])

    def clear(self) -> None:
        """Forgets all content of all tiers; nothing is in use."""
        for block in self._index:
            self._blocks.forget(block)
        self._index.clear()
        self._host.clear()
        self._events.clear()

    def snapshot(self) -> list[Entry]:
        """Returns (hash, parent) of what any tier holds."""
        return list(dict([*self._host.snapshot(), *self._index.snapshot()]).items())

    def drain_events(self) -> tuple[list[Entry], list[BlockHash], bool]:
        """Returns (stored, removed, cleared) since the last call; see HashIndex.drain_events.

        A hash is held as long as any tier has it: it is removed when the last one has lost it.
        """
        stored, removed, cleared = self._index.drain_events()
        if not self._host.num_slots:
            return stored, removed, cleared
        changed = [*(hash_ for hash_, _ in stored), *removed, *self._host.drain_changes()]
        return *self._events.merge(changed, self._parent_of), cleared

    def _parent_of(self, hash_: BlockHash) -> BlockHash | None:
        parent = self._index.parent_of(hash_)
        return self._host.parent_of(hash_) if parent is None else parent
