"""Which prefixes are pinned, within which budget, and until when. Pure: time is an argument.

A pin promises that the full blocks of one prefix stay in the cache. It keeps the promise by
references of its own on the blocks with the prefix's hashes, so they are never evicted. A pin
counts against the budget from the moment it is promised, and blocks that several pins have in
common count once. Knows nothing of how a prefix is computed, and who asks for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from octavo.engine.block_manager import BlockId, check
from octavo.engine.prefix_cache import PrefixCache
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import PIN_NOT_FOUND, PINS_FULL, OctavoError


def budget_blocks(share: float, *, num_blocks: int, request_blocks: int) -> int:
    """Returns how many blocks pins may take.

    Never so many that the longest request does not fit beside them: what was let in must not fail
    because of a pin.

    Args:
        share: of the pool.
        num_blocks: allocatable blocks of the pool.
        request_blocks: blocks of the longest request that the engine lets in.
    """
    return max(0, min(int(share * num_blocks), num_blocks - request_blocks))


@dataclass(slots=True, kw_only=True, eq=False)
class Pin:
    """One pinned prefix."""

    hashes: tuple[BlockHash, ...]
    """Of its full blocks, first one first; a hash means all that is before it, so the last one
    stands for the pin."""
    ttl_s: float | None = None
    """How long it lasts once its blocks are there; None: for ever."""
    expires: float = inf
    """Monotonic seconds."""
    blocks: list[BlockId] = field(default_factory=list)
    """What it holds: blocks of its first hashes, and of all of them once it is computed."""

    @property
    def id(self) -> str:
        """Its name, which the same prefix always gets."""
        return self.hashes[-1].hex()

    @property
    def is_whole(self) -> bool:
        """Whether all that was promised is held."""
        return len(self.blocks) == len(self.hashes)


class Pins:
    """All pins of one cache.

    Args:
        cache: where the blocks are.
        budget: blocks that all pins together may hold.
    """

    def __init__(self, cache: PrefixCache, budget: int) -> None:
        self.budget = budget
        self._cache = cache
        self._pins: dict[str, Pin] = {}
        self._promised: Counter[BlockHash] = Counter()

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    @property
    def num_blocks(self) -> int:
        """Blocks of the budget that are taken, held already or not."""
        return len(self._promised)

    def find(self, pin_id: str) -> Pin:
        """Returns the pin of this name or raises PIN_NOT_FOUND."""
        try:
            return self._pins[pin_id]
        except KeyError:
            raise OctavoError(PIN_NOT_FOUND, param="pin_id", pin=pin_id) from None

    def knows(self, hashes: Sequence[BlockHash]) -> bool:
        """Tells whether there is a pin of this prefix."""
        return hashes[-1].hex() in self._pins

    def promise(self, hashes: Sequence[BlockHash], ttl_s: float | None, now: float) -> Pin:
        """Returns the pin of a prefix: a new one, or the one that there is with its time anew.

        Args:
            hashes: the prefix's full blocks, at least one.
            ttl_s: how long it lasts once it is whole.
            now: monotonic seconds.

        Raises:
            OctavoError: PINS_FULL; nothing has changed.
        """
        pin = self._pins.get(hashes[-1].hex())
        if pin is None:
            needed = sum(1 for h in hashes if h not in self._promised)
            if self.num_blocks + needed > self.budget:
                raise OctavoError(
                    PINS_FULL, needed=needed, pinned=self.num_blocks, budget=self.budget
                )
            pin = Pin(hashes=tuple(hashes))
            self._pins[pin.id] = pin
            self._promised.update(pin.hashes)
        pin.ttl_s = ttl_s
        if pin.is_whole:
            self._begin(pin, now)
        else:
            pin.expires = inf
        return pin

    def hold(self, pin: Pin, now: float) -> bool:
        """Takes the blocks that the pin lacks; its time begins when it is whole.

        Called when no step is in flight, before anything can evict what was computed.

        Returns:
            Whether the pin is whole: not so when a block is not in the cache (any more).
        """
        while not pin.is_whole:
            block = self._cache.held.hold(pin.hashes[len(pin.blocks)])
            if block is None:
                return False
            pin.blocks.append(block)
        self._begin(pin, now)
        return True

    def drop(self, pin: Pin) -> None:
        """Ends a pin; its blocks stay hittable, and its tail is evicted first."""
        del self._pins[pin.id]
        self._cut(pin, 0)
        self._promised -= Counter(pin.hashes)

    def tend(self, now: float) -> None:
        """Ends pins whose time is over, and cuts those whose content turned out to be worthless.

        A pin that was cut keeps its name and its part of the budget; promising it again makes it
        whole.
        """
        for pin in [p for p in self if p.expires <= now]:
            self.drop(pin)
        if spoiled := self._cache.held.drain_spoiled():
            for pin in self:
                bad = (i for i, block in enumerate(pin.blocks) if block in spoiled)
                self._cut(pin, next(bad, len(pin.blocks)))

    def reset(self) -> bool:
        """Resets the cache and ends the pins that hold something, if no request has blocks."""
        if not self._cache.reset():
            return False
        for pin in [p for p in self if p.blocks]:
            pin.blocks.clear()  # the cache has given them up
            self.drop(pin)
        return True

    def check_integrity(self) -> None:
        """Raises IntegrityError unless the cache counts the references that pins hold."""
        held = Counter(block for pin in self for block in pin.blocks)
        check(held == self._cache.held.references, "pins hold other blocks than the cache counts")
        promised = Counter(h for pin in self for h in pin.hashes)
        check(promised == self._promised, "the count of promised blocks is wrong")
        check(self.num_blocks <= self.budget, "pins have more than their budget")
        check(len(held) <= self.num_blocks, "a common block of two pins is held twice")

    def _begin(self, pin: Pin, now: float) -> None:
        pin.expires = inf if pin.ttl_s is None else now + pin.ttl_s

    def _cut(self, pin: Pin, length: int) -> None:
        while len(pin.blocks) > length:
            self._cache.held.let_go(pin.blocks.pop())
