"""Blocks in host memory: what the device's pool evicts, and what preempted requests swap out.

One bounded pool of slots serves both. A slot with a hash that nobody refers to is the second tier
of the prefix cache and is evicted least recently used first, to disk if there is one; a slot that a
swapped request refers to stays. Here transfers are only decided: the runner copies, offloads before
restores before all else of the step, so an evicted block may get its new owner in the very step
that saves it. Knows no tensors, no files and no queues.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from octavo.engine.block_manager import BlockId, BlockManager, check
from octavo.engine.disk_tier import DiskTier
from octavo.engine.hash_index import HashIndex
from octavo.engine.request import RequestId
from octavo.v1.block_hash import BlockHash

Entry = tuple[BlockHash, BlockHash]
"""(hash, parent) of a block that is hittable."""
Content = tuple[BlockId, Entry | None]
"""A device block and, if it is hittable, what it is."""
Transfer = tuple[BlockId, BlockId]
"""(from, to); a slot is the BlockId of another pool."""


class HostPages(Protocol):
    """The bytes of the slots, between steps."""

    def read_page(self, slot: int) -> bytes:
        """Returns a copy of what a slot holds."""
        ...

    def write_page(self, slot: int, page: bytes) -> None:
        """Fills a slot with what `read_page` returned once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCounts:
    """What is told about the tier."""

    slots: int
    kept: int
    """Slots that hold hittable blocks."""
    used: int
    """Slots that swapped requests hold."""
    offloaded: int
    """Blocks copied to the host since the start."""
    restored: int
    """Blocks copied back since the start."""
    on_disk: int = 0
    written: int = 0
    """Blocks written to disk since the start."""
    read: int = 0
    """Blocks read back since the start."""
    disk_failed: int = 0
    """Writes and reads of the disk that failed or were dropped."""


class HostTier:
    """Owns the slots and their hashes, the tables of swapped requests, and the step's transfers.

    Args:
        num_slots: blocks of host memory; with none nothing is ever kept or swapped.
        disk: where evicted slots go; needs `pages`.
        pages: the content of the slots.
    """

    def __init__(
        self, num_slots: int, *, disk: DiskTier | None = None, pages: HostPages | None = None
    ) -> None:
        self.num_slots = num_slots
        self.disk = disk
        self._pages = pages
        self._num_offloaded = self._num_restored = 0
        self._slots = BlockManager(num_slots + 1, 1)
        self._index = HashIndex()
        self._swapped: dict[RequestId, list[BlockId]] = {}
        # All below is of the present step and over with it.
        self._offloads: list[Transfer] = []
        self._restores: dict[BlockId, BlockId] = {}  # by block
        self._images: dict[BlockId, BlockId] = {}  # device block -> slot with the same content
        self._pinned: Counter[BlockId] = Counter()
        self._new_swaps: dict[RequestId, None] = {}

    @property
    def has_swapped(self) -> bool:
        """Whether any request is swapped out."""
        return bool(self._swapped)

    def counts(self) -> TierCounts:
        """Returns what the tier holds and has moved."""
        return TierCounts(
            slots=self.num_slots,
            kept=len(self._index),
            used=self.num_swapped(self._swapped),
            offloaded=self._num_offloaded,
            restored=self._num_restored,
            on_disk=0 if self.disk is None else len(self.disk),
            written=0 if self.disk is None else self.disk.num_written,
            read=0 if self.disk is None else self.disk.num_read,
            disk_failed=0 if self.disk is None else self.disk.num_failed,
        )

    def offloads(self) -> list[Transfer]:
        """Returns (block, slot) of the step; no slot twice."""
        return list(self._offloads)

    def restores(self) -> list[Transfer]:
        """Returns (slot, block) of the step; no block twice."""
        return [(slot, block) for block, slot in self._restores.items()]

    def find(self, hash_: BlockHash) -> BlockId | None:
        """Returns the slot that holds this content, when the step's offloads are done, or None."""
        return self._index.find(hash_)

    def entry(self, slot: BlockId) -> Entry | None:
        """Returns what a slot holds, if that is hittable."""
        return self._index.entry(slot)

    def save(self, block: BlockId, hash_: BlockHash, parent: BlockHash) -> None:
        """Keeps the content of a block that is being evicted, unless it is here or has no room."""
        if self._index.find(hash_) is None and self._slots.num_available:
            self._offload(block, (hash_, parent))

    def reuse(self, block: BlockId) -> None:
        """A device block gets a new owner in this step, so it is an image of nothing any more."""
        self._images.pop(block, None)
        self._restores.pop(block, None)

    def hold(self, slot: BlockId) -> None:
        """Keeps the slot from being evicted until the step has ended."""
        self._slots.share(slot)
        self._pinned[slot] += 1

    def restore(self, slot: BlockId, block: BlockId) -> None:
        """Plans that the block gets the slot's content; the slot is held."""
        self._restores[block] = self._images[block] = slot
        self._num_restored += 1

    def has_image(self, block: BlockId) -> bool:
        """Tells whether a slot holds what the block holds before the step's rows are computed."""
        return block in self._images

    def swap_out(self, tables: Mapping[RequestId, Sequence[Content]]) -> bool:
        """Gives requests slots with the content of their blocks; a shared block is copied once.

        Returns:
            False, with nothing changed, if there are not slots enough.
        """
        found: dict[BlockId, BlockId] = {}
        missing: dict[BlockId, Entry | None] = {}
        for block, entry in (content for table in tables.values() for content in table):
            slot = self._images.get(block)
            if slot is None and entry is not None:
                slot = self._index.find(entry[0])
            if slot is None:
                missing[block] = entry
            else:
                found[block] = slot
        revived = sum(1 for s in set(found.values()) if self._slots.references(s) == 0)
        if len(missing) + revived > self._slots.num_available:
            return False
        for slot in set(found.values()):
            self.hold(slot)
        for block, entry in missing.items():
            # Two blocks with one hash need a slot each only if neither was here before.
            known = None if entry is None else self._index.find(entry[0])
            found[block] = self._offload(block, entry) if known is None else known
            self._images[block] = found[block]
        for request_id, table in tables.items():
            check(request_id not in self._swapped, f"request {request_id} is swapped out already")
            slots = self._swapped[request_id] = [found[block] for block, _ in table]
            self._new_swaps[request_id] = None
            for slot in slots:
                self._slots.share(slot)
        return True

    def is_swapped(self, request_id: RequestId) -> bool:
        """Tells whether the request has its content here instead of blocks."""
        return request_id in self._swapped

    def swapped(self, request_id: RequestId) -> Sequence[BlockId]:
        """Returns the slots of a swapped request in order."""
        return self._swapped[request_id]

    def num_swapped(self, request_ids: Iterable[RequestId]) -> int:
        """Returns how many different slots these swapped requests have."""
        return len({slot for i in request_ids for slot in self._swapped[i]})

    def take_swapped(self, request_id: RequestId) -> list[BlockId]:
        """Ends a swap and returns its slots in order, held until the step has ended."""
        slots = self._swapped.pop(request_id)
        self._new_swaps.pop(request_id, None)
        self._pinned.update(slots)
        return slots

    def discard(self, request_id: RequestId) -> None:
        """Gives up the slots of a swapped request, last one first, and what it has asked for."""
        for slot in reversed(self._swapped.pop(request_id, [])):
            self._slots.release(slot)
        self._new_swaps.pop(request_id, None)
        if self.disk is not None:
            self.disk.discard(request_id)

    def forget(self, hash_: BlockHash) -> None:
        """Makes this content unhittable; swapped requests keep theirs."""
        slot = self._index.find(hash_)
        if slot is not None:
            self._index.remove(slot)
            self._slots.forget(slot)
        if self.disk is not None:
            self.disk.forget(hash_)

    def load(self, request_id: RequestId, hashes: Iterable[BlockHash], now: float) -> None:
        """Begins to bring what is on disk of a waiting request's next blocks, as far as it fits."""
        if self.disk is None:
            return
        disk, missing = self.disk, list[BlockHash]()
        for hash_ in hashes:
            if self._index.find(hash_) is not None:
                continue
            if disk.parent_of(hash_) is None:
                break
            missing.append(hash_)
        # What is being read for others needs slots, too.
        room = max(0, self._slots.num_available - disk.num_reading)
        disk.ask(request_id, itertools.islice(missing, room), now)

    def is_loading(self, request_id: RequestId, now: float) -> bool:
        """Tells whether the request waits for blocks that it has asked for."""
        disk = self.disk
        return disk is not None and disk.has_asked(request_id) and disk.is_loading(request_id, now)

    def poll(self) -> None:
        """Takes in what the disk has brought, between two steps."""
        if self.disk is None or self._pages is None:
            return
        for hash_, parent, page in self.disk.poll():
            if self._index.find(hash_) is None and self._slots.num_available:
                slot = self._take()
                self._pages.write_page(slot, page)
                self._index.insert(slot, hash_, parent)
                self._slots.keep(slot)
                self._slots.release(slot)

    def commit(self) -> None:
        """The step succeeded: what it copied is here."""
        self._index.publish()
        self._end_step()

    def revoke(self) -> list[RequestId]:
        """The step failed, so nobody knows what it copied.

        Returns:
            Requests that it was to swap out; their content is lost.
        """
        for slot in self._index.revoke():
            self._slots.forget(slot)
        lost = list(self._new_swaps)
        for request_id in lost:
            self.discard(request_id)
        self._end_step()
        return lost

    def clear(self) -> None:
        """Forgets everything; no request is swapped."""
        check(not self._swapped, "the host tier is cleared while a request is swapped out")
        self._end_step()
        for slot in self._index:
            self._slots.forget(slot)
        self._index.clear()
        if self.disk is not None:
            self.disk.clear()

    def parent_of(self, hash_: BlockHash) -> BlockHash | None:
        """Returns the parent of a hash that is held, else None."""
        parent = self._index.parent_of(hash_)
        return self.disk.parent_of(hash_) if parent is None and self.disk is not None else parent

    def snapshot(self) -> list[Entry]:
        """Returns (hash, parent) of all that is held here and on disk."""
        below = [] if self.disk is None else self.disk.snapshot()
        return list(dict([*below, *self._index.snapshot()]).items())

    def drain_changes(self) -> list[BlockHash]:
        """Returns the hashes that came or went since the last call."""
        stored, removed, _ = self._index.drain_events()
        below = [] if self.disk is None else self.disk.drain_changes()
        return [*(hash_ for hash_, _ in stored), *removed, *below]

    def check_integrity(self) -> None:
        """Raises IntegrityError unless slots, hashes, swapped tables and transfers agree."""
        self._slots.check_integrity()
        self._index.check_integrity()
        references: Counter[BlockId] = Counter(self._pinned)
        for slots in self._swapped.values():
            references.update(slots)
        for i in range(1, self.num_slots + 1):
            slot = BlockId(i)
            counted, stated = references[slot], self._slots.references(slot)
            check(counted == stated, f"slot {slot}: {stated} references, {counted} known")
            kept = self._slots.is_kept(slot)
            check(kept == (slot in self._index), f"slot {slot}: mark and hash entry differ")
        targets = [slot for _, slot in self._offloads]
        check(len(targets) == len(set(targets)), "two blocks are offloaded into one slot")
        moved = {*targets, *self._restores.values()}
        check(moved <= self._pinned.keys(), "a transfer's slot is not held")
        check(self._new_swaps.keys() <= self._swapped.keys(), "a swap is new but does not exist")
        if self.disk is not None:
            self.disk.check_integrity()

    def _offload(self, block: BlockId, entry: Entry | None) -> BlockId:
        """Plans the copy into a slot; its reference is the step's."""
        slot = self._take()
        self._pinned[slot] += 1
        self._offloads.append((block, slot))
        self._num_offloaded += 1
        if entry is not None:
            self._index.add(slot, *entry)
            self._slots.keep(slot)
        return slot

    def _take(self) -> BlockId:
        """Takes a slot; what it held, all of which has been copied, goes on to disk."""
        slot = self._slots.take()
        entry = self._index.entry(slot)
        if entry is not None:
            if self.disk is not None and self._pages is not None:
                self.disk.save(*entry, partial(self._pages.read_page, slot))
            self._index.remove(slot)
        return slot

    def _end_step(self) -> None:
        for slot in self._pinned.elements():
            self._slots.release(slot)
        self._pinned.clear()
        self._offloads.clear()
        self._restores.clear()
        self._images.clear()
        self._new_swaps.clear()
