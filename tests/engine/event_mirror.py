"""What somebody believes to be cached who has nothing but the events."""

from __future__ import annotations

from octavo.engine.prefix_cache import PrefixCache
from octavo.v1.block_hash import BlockHash


class EventMirror:
    """Follows one cache; each event has to change what was known."""

    def __init__(self, cache: PrefixCache) -> None:
        self.known: dict[BlockHash, BlockHash] = {}
        """Hash to parent."""
        self._cache = cache

    def replay(self) -> None:
        """Applies the events since the last call, after which what is known is what is cached."""
        stored, removed, cleared = self._cache.drain_events()
        if cleared:
            self.known.clear()
        for hash_ in removed:
            del self.known[hash_]
        for hash_, parent in stored:
            assert hash_ not in self.known
            self.known[hash_] = parent
        assert self.known == dict(self._cache.snapshot())
