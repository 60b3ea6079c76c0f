"""References that keep cached blocks from eviction though no request has them.

Knows neither what they are for nor how many there may be: see pins.
"""

from __future__ import annotations

from collections import Counter

from octavo.engine.block_manager import BlockId, BlockManager, check
from octavo.engine.hash_index import HashIndex
from octavo.v1.block_hash import BlockHash


class HeldBlocks:
    """Blocks that are held, in use by requests or not, each as often as it was asked for.

    Args:
        blocks: the pool.
        index: what its blocks hold.
    """

    def __init__(self, blocks: BlockManager, index: HashIndex) -> None:
        self.references: Counter[BlockId] = Counter()
        """How often each is held; only read outside."""
        self._blocks = blocks
        self._index = index
        self._spoiled: set[BlockId] = set()

    def __len__(self) -> int:
        return len(self.references)

    def hold(self, hash_: BlockHash) -> BlockId | None:
        """Keeps a block with this content from eviction and returns it; None if there is none.

        Each call is a reference of its own. Called when no step is in flight, so that what is found
        is computed.
        """
        block = self._index.find(hash_)
        if block is not None:
            self._blocks.share(block)
            self.references[block] += 1
        return block

    def let_go(self, block: BlockId) -> None:
        """Takes back one `hold`."""
        check(self.references[block] > 0, f"block {block} is let go more often than held")
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
        self._blocks.release(block)

    def spoil(self, block: BlockId) -> None:
        """The block can be hit no more; whoever holds it is to learn of it."""
        if block in self.references:
            self._spoiled.add(block)

    def drain_spoiled(self) -> set[BlockId]:
        """Returns the held blocks that can be hit no more, since the last call."""
        spoiled, self._spoiled = self._spoiled, set()
        return spoiled

    def clear(self) -> None:
        """Takes back every `hold`."""
        for block in self.references.elements():
            self._blocks.release(block)
        self.references.clear()
        self._spoiled.clear()
