"""Which prefix blocks one engine holds, exactly as its events say.

    held       blocks that the engine published and has not removed
    promised   blocks of requests sent there that have not ended: about to be computed

Memory is bounded by the engine's pool (held) and by the open requests (promised). Knows no
routing and no tokens: only hashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash


class IndexGapError(Exception):
    """An event was missed, so that the index must be rebuilt from a new snapshot."""


class PrefixIndex:
    """The blocks of one engine."""

    def __init__(self) -> None:
        self._held: set[bytes] = set()
        self._promised: Counter[bytes] = Counter()
        self._epoch = 0
        self._seq = 0

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._held)

    def held(self) -> frozenset[bytes]:
        """Returns a copy of the held hashes, for checks."""
        return frozenset(self._held)

    def num_promised(self) -> int:
        """Distinct promised blocks."""
        return len(self._promised)

    def restart(self) -> None:
        """Expects a new stream: the next message must have seq 1."""
        self._seq = 0

    def apply(self, update: engine_pb2.StateUpdate) -> None:
        """Takes the events of one message; raises IndexGapError when one before it is missing."""
        if update.seq != self._seq + 1:
            raise IndexGapError(f"expected message {self._seq + 1}, got {update.seq}")
        if update.epoch != self._epoch:
            if self._seq:
                raise IndexGapError("the engine's epoch changed within a stream")
            self._held.clear()
            self._epoch = update.epoch
        self._seq = update.seq
        if update.cleared:
            self._held.clear()
        self._held.difference_update(update.removed)
        self._held.update(block.hash for block in update.stored)

    def promise(self, hashes: Iterable[BlockHash]) -> None:
        """Credits blocks that a request just sent will compute or use."""
        self._promised.update(hashes)

    def release(self, hashes: Iterable[BlockHash]) -> None:
        """Takes one promise back: its request ended."""
        promised = self._promised
        for block in hashes:
            if promised[block] <= 1:
                del promised[block]
            else:
                promised[block] -= 1

    def hit_blocks(self, hashes: Sequence[BlockHash]) -> int:
        """Returns how many leading blocks are held or promised."""
        held, promised = self._held, self._promised
        for i, block in enumerate(hashes):
            if block not in held and block not in promised:
                return i
        return len(hashes)
