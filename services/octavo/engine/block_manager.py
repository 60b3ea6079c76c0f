"""Which KV block is free, which is used and by how many. Knows no hashes, requests or policy.

Every block that nobody refers to lies in one queue. Blocks are taken from its front. A released
block goes to the front if its content is worthless, so that warm memory is used again first, and
to the back if its content is kept, so that kept content is evicted least recently used first.
"""

from __future__ import annotations

from typing import NewType

BlockId = NewType("BlockId", int)

NULL_BLOCK = BlockId(0)
"""Never allocated and never read: what a block table may point to where there is nothing."""


class IntegrityError(RuntimeError):
    """An invariant of the engine's own bookkeeping is broken; never the fault of a request."""


def check(holds: bool, message: str) -> None:
    """Raises IntegrityError unless the invariant holds; unlike assert it survives `python -O`."""
    if not holds:
        raise IntegrityError(message)


class BlockManager:
    """Reference counts and the free queue of one pool.

    Args:
        num_blocks: blocks of the pool, the null block included; one less can be allocated, or none.
        block_tokens: tokens that one block holds.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        check(num_blocks >= 1, f"a pool of {num_blocks} blocks lacks the null block")
        check(block_tokens >= 1, f"a block of {block_tokens} tokens holds nothing")
        self.block_tokens = block_tokens
        self.num_allocatable = num_blocks - 1
        self._references = [0] * num_blocks
        self._kept = bytearray(num_blocks)
        # The queue is a ring through all free blocks in which the null block marks the end, so
        # _next[NULL_BLOCK] is the front, _previous[NULL_BLOCK] the back, and no link is a special
        # case. The links of blocks in use mean nothing.
        self._next = [*range(1, num_blocks), NULL_BLOCK]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]
        self._num_available = num_blocks - 1
        self._num_kept_free = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: nobody refers to them, whether their content is kept or not."""
        return self._num_available

    @property
    def num_free(self) -> int:
        """Available blocks whose content is worthless."""
        return self._num_available - self._num_kept_free

    @property
    def num_kept_free(self) -> int:
        """Available blocks whose content is kept until they are taken."""
        return self._num_kept_free

    @property
    def num_used(self) -> int:
        """Blocks that somebody refers to."""
        return self.num_allocatable - self._num_available

    def blocks_for(self, num_tokens: int) -> int:
        """Returns how many blocks hold this many tokens."""
        return -(-num_tokens // self.block_tokens)

    def references(self, block: BlockId) -> int:
        """Returns how many refer to the block."""
        return self._references[block]

    def take(self) -> BlockId:
        """Takes the block at the queue's front, with one reference and its content not kept.

        Whoever kept the content has to forget it. The caller has checked `num_available`.
        """
        check(self._num_available > 0, "no block is free")
        block = BlockId(self._next[NULL_BLOCK])
        self._unlink(block)
        self._kept[block] = 0
        self._references[block] = 1
        return block

    def share(self, block: BlockId) -> None:
        """Adds a reference; a free block leaves the queue."""
        if self._references[block] == 0:
            if block == NULL_BLOCK:
                raise IntegrityError("the null block cannot be shared")
            self._unlink(block)
        self._references[block] += 1

    def release(self, block: BlockId) -> None:
        """Drops a reference; with the last one the block goes to the queue."""
        if self._references[block] == 0:
            raise IntegrityError(f"block {block} is released more often than taken")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._link(block)

    def keep(self, block: BlockId) -> None:
        """Marks the content of a block in use as worth keeping once it is free."""
        if self._references[block] == 0:
            raise IntegrityError(f"block {block} is free and cannot be marked")
        self._kept[block] = 1

    def forget(self, block: BlockId) -> None:
        """Marks the content as worthless; a free block moves to the queue's front."""
        if self._references[block] == 0 and self._kept[block]:
            self._unlink(block)
            self._kept[block] = 0
            self._link(block)
        self._kept[block] = 0

    def is_kept(self, block: BlockId) -> bool:
        """Tells whether the content is marked as worth keeping."""
        return bool(self._kept[block])

    def free_queue(self) -> list[BlockId]:
        """Returns the available blocks in the order in which they will be taken."""
        queue: list[BlockId] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            queue.append(BlockId(block))
            check(len(queue) <= self.num_allocatable, "the free queue is a cycle")
            block = self._next[block]
        return queue

    def check_integrity(self) -> None:
        """Raises IntegrityError unless queue, counts and marks agree."""
        queue = self.free_queue()
        unused = {b for b, n in enumerate(self._references) if n == 0} - {NULL_BLOCK}
        check(self._references[NULL_BLOCK] == 0, "the null block has references")
        check(not self._kept[NULL_BLOCK], "the null block is kept")
        check(len(queue) == len(set(queue)), "a block is in the free queue twice")
        check(set(queue) == unused, "the free queue is not the set of blocks without references")
        check(len(queue) == self._num_available, "the count of available blocks is wrong")
        kept_free = sum(self._kept[b] for b in queue)
        check(kept_free == self._num_kept_free, "the count of kept free blocks is wrong")
        for block in (NULL_BLOCK, *queue):
            there_and_back = self._previous[self._next[block]]
            check(there_and_back == block, f"the links of block {block} do not match")

    def _unlink(self, block: BlockId) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._num_available -= 1
        self._num_kept_free -= self._kept[block]

    def _link(self, block: BlockId) -> None:
        """Puts the block at the back if its content is kept, else at the front."""
        if self._kept[block]:
            before, after = self._previous[NULL_BLOCK], int(NULL_BLOCK)
        else:
            before, after = int(NULL_BLOCK), self._next[NULL_BLOCK]
        self._next[before] = self._previous[after] = block
        self._previous[block] = before
        self._next[block] = after
        self._num_available += 1
        self._num_kept_free += self._kept[block]
