"""Block tables of requests, and the reuse of blocks whose content is known by its hash.

A hash means a whole prefix, so lookup walks from the first block and stops at the first miss.
Tables only grow; a block that others refer to, or that has a hash, is copied before it is written.
What the pool evicts goes on in the host tier and comes back from there. Knows nothing of queues,
budgets and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from octavo.engine.block_manager import NULL_BLOCK, BlockId, BlockManager, check
from octavo.engine.hash_index import NO_PARENT, HashIndex
from octavo.engine.held_blocks import HeldBlocks
from octavo.engine.host_tier import HostTier
from octavo.engine.request import Request, RequestId, Status
from octavo.engine.tiers import Tiers
from octavo.v1.block_hash import BlockHash

Copy = tuple[BlockId, BlockId]
"""(from, to): to be done before the step's rows."""


class PrefixCache:
    """Owns the block tables and the hash index of one pool, and the tiers below it.

    Args:
        blocks: the pool; nobody else takes blocks from it.
        enabled: without it nothing gets a hash and nothing is ever hit.
        host: host memory; None has none.
    """

    def __init__(
        self, blocks: BlockManager, *, enabled: bool = True, host: HostTier | None = None
    ) -> None:
        self.queries = 0
        """Tokens looked up at first admissions."""
        self.hits = 0
        """Tokens of those that were found in the pool."""
        self.host_hits = 0
        """Tokens that were found in the host tier only."""
        self.preempted_hits = 0
        """Tokens that resumed requests found; no measure of how well the cache serves callers."""
        self.enabled = enabled  # whether anything is ever hit
        self._blocks = blocks
        self.host = host or HostTier(0)
        self._index = HashIndex()
        self._tiers = Tiers(blocks, self._index, self.host)
        self._tables: dict[RequestId, list[BlockId]] = {}
        # References that the step's copies hold on their sources until the step has ended.
        self._pinned: Counter[BlockId] = Counter()
        self._copied: set[BlockId] = set()  # targets of the step's copies
        self.held = HeldBlocks(blocks, self._index)

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        return self._blocks.block_tokens

    @property
    def num_allocatable(self) -> int:
        """Blocks that requests can have at most, all together."""
        return self._blocks.num_allocatable

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated now: free ones and cached ones that nobody uses."""
        return self._blocks.num_available

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._blocks.num_free

    @property
    def num_cached_free(self) -> int:
        """Blocks that nobody uses, but that are hittable."""
        return self._blocks.num_kept_free

    @property
    def num_tables(self) -> int:
        """Requests that have blocks."""
        return len(self._tables)

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks hold this many tokens."""
        return self._blocks.blocks_for(num_tokens)

    def table(self, request: Request) -> Sequence[BlockId]:
        """Returns the request's blocks in order; a live view, not to be kept over a call."""
        return self._tables[request.id]

    def extend_hashes(self, request: Request) -> None:
        """Hashes the full blocks of the request's tokens that have no hash yet."""
        if self.enabled:
            request.extend_hashes(self.block_tokens)

    def match(self, request: Request) -> list[BlockId]:
        """Returns the blocks that already hold the request's longest prefix known to the pool.

        What the host tier knows beyond needs new blocks like anything else. At least the last
        token is left to compute, for its logits; nothing is counted or touched, so a request that
        stays in the queue may ask again.
        """
        if not self.enabled or not request.reads_cache:
            return []
        self.extend_hashes(request)
        found: list[BlockId] = []
        for hash_ in self._usable(request):
            block = self._index.find(hash_)
            if block is None:
                break
            found.append(block)
        return found

    def shortfall(self, request: Request, hits: Sequence[BlockId]) -> int:
        """Returns how many blocks are lacking to admit the request; negative: how many are over.

        A hit on a block that nobody uses consumes an available block like an allocation.
        """
        new = self._blocks.blocks_for(request.num_tokens) - len(hits)
        revived = sum(1 for block in hits if self._blocks.references(block) == 0)
        return new + revived - self._blocks.num_available

    def admit(self, request: Request, hits: Sequence[BlockId]) -> int:
        """Makes the table for all of the request's tokens; returns how many are cached.

        `hits` is what `match` has just returned, and there is no `shortfall`. The blocks that
        follow them in the host tier are restored; a swapped request gets back what it had.
        """
        check(request.id not in self._tables, f"request {request.id} has a block table already")
        cached = len(hits) * self.block_tokens
        if self.is_swapped(request) and cached <= request.num_computed:
            table = self._tables[request.id] = self._tiers.swap_in(request.id, hits, {})
            self._grow(table, request.num_tokens)
            return request.num_computed
        self.discard(request)
        for block in hits:
            self._blocks.share(block)
        reads = self.enabled and request.reads_cache
        beyond = islice(self._usable(request), len(hits), None) if reads else ()
        slots = self._tiers.hold_hits(beyond)
        table = self._tables[request.id] = list(hits)
        table += [self._tiers.restore(slot) for slot in slots]
        self._grow(table, request.num_tokens)
        from_host = len(slots) * self.block_tokens
        if reads:
            if request.status is Status.PREEMPTED:
                self.preempted_hits += cached + from_host
            else:
                self.queries += request.num_tokens
                self.hits += cached
                self.host_hits += from_host
        return cached + from_host

    def blocks_needed(self, request: Request, end: int) -> int:
        """Returns how many blocks `extend` would take for the same positions."""
        table = self._tables[request.id]
        new = max(0, self._blocks.blocks_for(end) - len(table))
        return new + (not self._is_writable(table, request.num_computed))

    def blocks_lacking(self, request: Request, end: int) -> int:
        """Returns how many blocks the request may take until it has `end` tokens.

        Those that its table lacks, and a copy of its partial block while others share that.
        """
        table = self._tables[request.id]
        index, offset = divmod(request.num_computed, self.block_tokens)
        shared = False
        if offset and index < len(table):
            block = table[index]
            shared = self._blocks.references(block) - self._pinned[block] > 1
        return max(0, self._blocks.blocks_for(end) - len(table)) + shared

    def blocks_needed_by_all(self, writes: Sequence[tuple[Request, int]]) -> int:
        """Returns how many blocks `extend` would take for all of these, one after the other.

        Of those that write into one block the last one writes in place if nobody else owns it.
        """
        new, writers = 0, Counter[BlockId]()
        for request, end in writes:
            table = self._tables[request.id]
            new += max(0, self._blocks.blocks_for(end) - len(table))
            writers.update(table[request.num_computed // self.block_tokens :][:1])
        for block, count in writers.items():
            others = self._blocks.references(block) - self._pinned[block] - 1
            new += count if block in self._index else min(count, others)
        return new

    def extend(self, request: Request, end: int) -> Copy | None:
        """Prepares the request's blocks for writing positions [num_computed, end).

        Blocks that will be full get their hash, pending until `commit`.

        Returns:
            The copy that has to be done first, if there is one.
        """
        copy = self.make_writable(request, request.num_computed)
        self._grow(self._tables[request.id], end)
        self._register(request, end)
        return copy

    def make_writable(self, request: Request, position: int) -> Copy | None:
        """Replaces the block of a position if the request may not write into it.

        The source stays referenced until the step has ended, so that nothing overwrites it before
        the copy has run; the last owner of a shared block therefore writes in place.
        """
        table = self._tables[request.id]
        if self._is_writable(table, position):
            return None
        index = position // self.block_tokens
        source, target = table[index], self._tiers.take()
        table[index] = target
        # The reference of the table becomes the one of the copy.
        self._pinned[source] += 1
        self._copied.add(target)
        return source, target

    def fork(self, parent: Request, child: Request) -> None:
        """Gives the child the parent's blocks, all of which are computed; no bytes move."""
        check(child.id not in self._tables, f"request {child.id} has a block table already")
        table = list(self._tables[parent.id])
        # `extend` copies the first block it writes only, so no block may be shared unwritten.
        computed = self._blocks.blocks_for(parent.num_computed)
        check(len(table) == computed, f"request {parent.id} is forked before it is computed")
        self._tables[child.id] = table
        for block in table:
            self._blocks.share(block)

    def fork_over(self, parent: Request, child: Request) -> None:
        """Gives the child the parent's blocks instead of its own; both descend from one fork.

        So their tables are equal up to some block and nowhere after it, and only that rest is
        looked at: a long prompt costs nothing.
        """
        old, new = self._tables[child.id], self._tables[parent.id]
        same = min(len(old), len(new))
        while same and old[same - 1] != new[same - 1]:
            same -= 1
        for block in new[same:]:
            self._blocks.share(block)
        for block in reversed(old[same:]):
            self._blocks.release(block)
        self._tables[child.id] = list(new)

    def release(self, request: Request) -> None:
        """Gives up the request's blocks, last one first, so that a prefix loses its tail first."""
        for block in reversed(self._tables.pop(request.id)):
            self._blocks.release(block)

    def swap_out(self, requests: Sequence[Request]) -> bool:
        """Moves what requests have computed to the host, and gives up their blocks.

        What they share stays shared. A request with content that this very step is to bring cannot
        be swapped.

        Returns:
            False, with nothing changed, if the host tier has no room for all of them.
        """
        tables = {r.id: self._tables[r.id][: self.blocks_for(r.num_computed)] for r in requests}
        if not self._tiers.swap_out(tables, self._copied):
            return False
        for request in requests:
            self.release(request)
        return True

    def is_swapped(self, request: Request) -> bool:
        """Whether the request waits with its content in the host tier."""
        return self.host.is_swapped(request.id)

    def blocks_to_resume(self, requests: Sequence[Request]) -> int:
        """Returns how many blocks `resume` takes of those that are available."""
        return self._tiers.blocks_to_swap_in(r.id for r in requests)

    def resume(self, requests: Sequence[Request]) -> None:
        """Gives swapped requests, for which there are `blocks_to_resume`, tables again."""
        restored: dict[BlockId, BlockId] = {}
        for request in requests:
            check(request.id not in self._tables, f"request {request.id} has a block table already")
            self._tables[request.id] = self._tiers.swap_in(request.id, (), restored)

    def awaits_disk(self, request: Request, now: float) -> bool:
        """Asks the disk once for a waiting request's blocks; tells whether they are coming."""
        disk, swapped = self.host.disk, self.is_swapped(request.holders[0])
        if disk is None or swapped or not self.enabled or not request.reads_cache:
            return False
        if not disk.has_asked(request.id):
            hits = len(self.match(request))
            self.host.load(request.id, islice(self._usable(request), hits, None), now)
        return disk.is_loading(request.id, now)

    def discard(self, request: Request) -> None:
        """Forgets what the tiers below keep for a request that waits, if there is anything."""
        self.host.discard(request.id)

    def commit(self, poisoned: Iterable[Request] = ()) -> None:
        """The step succeeded: its hashes are published and its copies are done.

        Nothing that a poisoned request has written or read stays hittable, whoever wrote it.
        """
        for request in poisoned:
            table = self._tables[request.id]
            for block in table:
                if block in self._index:
                    self._index.remove(block)
                    self._blocks.forget(block)
                    self.held.spoil(block)
            for hash_ in islice(request.block_hashes, len(table)):
                self.host.forget(hash_)
        self._index.publish()
        self.host.commit()
        self._unpin()

    def revoke(self) -> list[RequestId]:
        """The step failed: its hashes are forgotten, before their requests give up the blocks.

        Returns:
            Waiting requests that the step was to swap out: their content is lost.
        """
        for block in self._index.revoke():
            self._blocks.forget(block)
        self._unpin()
        return self.host.revoke()

    def reset(self) -> bool:
        """Forgets all content of all tiers, that of held blocks too.

        Returns:
            False, and nothing has changed, while a request has blocks or is swapped out.
        """
        if self._tables or self._blocks.num_used > len(self.held) or self.host.has_swapped:
            return False
        self.held.clear()
        self._tiers.clear()
        return True

    def snapshot(self) -> list[tuple[BlockHash, BlockHash]]:
        """Returns (hash, parent) of all published blocks, children possibly before parents."""
        return self._tiers.snapshot()

    def drain_events(self) -> tuple[list[tuple[BlockHash, BlockHash]], list[BlockHash], bool]:
        """Returns (stored, removed, cleared) since the last call, of all tiers together."""
        return self._tiers.drain_events()

    def check_integrity(self) -> None:
        """Raises IntegrityError unless tables, references, hashes and free queue agree."""
        self._blocks.check_integrity()
        self._index.check_integrity()
        self.host.check_integrity()
        both = [i for i in self._tables if self.host.is_swapped(i)]
        check(not both, f"requests {both} have blocks and are swapped out")
        references = self._pinned + self.held.references
        for request_id, table in self._tables.items():
            check(len(table) == len(set(table)), f"request {request_id} has a block twice")
            references.update(table)
        check(NULL_BLOCK not in references, "a table refers to the null block")
        for i in range(1, self.num_allocatable + 1):
            block = BlockId(i)
            counted, stated = references[block], self._blocks.references(block)
            check(counted == stated, f"block {block}: {stated} references, {counted} in tables")
            kept = self._blocks.is_kept(block)
            check(kept == (block in self._index), f"block {block}: mark and hash entry differ")

    def _usable(self, request: Request) -> Iterable[BlockHash]:
        """The hashes of the blocks that may be hit; the last token is always computed."""
        return islice(request.block_hashes, (request.num_tokens - 1) // self.block_tokens)

    def _grow(self, table: list[BlockId], num_tokens: int) -> None:
        missing = self._blocks.blocks_for(num_tokens) - len(table)
        table.extend(self._tiers.take() for _ in range(missing))

    def _register(self, request: Request, end: int) -> None:
        """Gives a pending hash to each block that [num_computed, end) completes."""
        first, stop = request.num_computed // self.block_tokens, end // self.block_tokens
        if first == stop or not self.enabled:
            return
        self.extend_hashes(request)
        table, chain = self._tables[request.id], request.block_hashes
        for i in range(first, stop):
            self._index.add(table[i], chain[i], chain[i - 1] if i else NO_PARENT)
            self._blocks.keep(table[i])

    def _is_writable(self, table: Sequence[BlockId], position: int) -> bool:
        """Tells whether the owner of the table may write there; a block to come always is."""
        index = position // self.block_tokens
        if index >= len(table):
            return True
        block = table[index]
        owners = self._blocks.references(block) - self._pinned[block]
        return owners == 1 and block not in self._index

    def _unpin(self) -> None:
        for block in self._pinned.elements():
            self._blocks.release(block)
        self._pinned.clear()
        self._copied.clear()
