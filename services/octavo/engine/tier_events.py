"""One state told for all tiers: a block is held as long as any of them has it.

Whoever routes by prefix asks where a prompt needs no computation, not in which memory it lies; so
moves between tiers are no news. Knows neither tiers nor blocks, only what was told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.v1.block_hash import BlockHash


class TierEvents:
    """Remembers what the outside believes to be held, and tells the difference."""

    def __init__(self) -> None:
        self._told: dict[BlockHash, BlockHash] = {}

    def merge(
        self,
        changed: Iterable[BlockHash],
        parent_of: Callable[[BlockHash], BlockHash | None],
    ) -> tuple[list[tuple[BlockHash, BlockHash]], list[BlockHash]]:
        """Returns what is to be told of hashes that came or went in some tier.

        Args:
            changed: the hashes, in any order and more than once if need be.
            parent_of: the parent of a hash that some tier holds now, else None.

        Returns:
            (hash, parent) of those that are new, and the hashes that are gone everywhere.
        """
        came: list[tuple[BlockHash, BlockHash]] = []
        gone: list[BlockHash] = []
        for hash_ in dict.fromkeys(changed):
            parent = parent_of(hash_)
            if parent is not None and hash_ not in self._told:
                self._told[hash_] = parent
                came.append((hash_, parent))
            elif parent is None and self._told.pop(hash_, None) is not None:
                gone.append(hash_)
        return came, gone

    def clear(self) -> None:
        """The outside has been told that nothing is held."""
        self._told.clear()
