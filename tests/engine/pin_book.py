"""What pins are to hold, by the tokens alone, beside an engine that has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.engine.harness import IDENTITY
from tests.engine.pinning import PinningEngine
from tests.engine.scheduling import make_request
from tests.engine.workload import PinAsk
from tests.fakes import BLOCK, mark_of

from octavo.engine.pin_orders import Outcome
from octavo.v1.block_hash import hash_root
from octavo.v1.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    INVALID_VALUE,
    PIN_NOT_FOUND,
    PINS_FULL,
    REQUEST_FAILED,
    UNSUPPORTED_PARAMETER,
    ErrorKind,
    OctavoError,
)

Prefix = tuple[str, tuple[int, ...]]
"""Salt and token ids."""


class PinBook:
    """Asks for pins, and knows what each has promised.

    Args:
        engine: has the pins.
        counts: what happened is counted here.
    """

    def __init__(self, engine: PinningEngine, counts: Counter[str]) -> None:
        self.was_spoiled = False
        """Whether content that a pin may have wanted turned out to be worthless."""
        self._engine = engine
        self._pins = engine.orders.pins
        self._counts = counts
        self._prefixes: dict[str, Prefix] = {}
        self._outcomes: list[list[Outcome]] = []
        self._was_unpinned = False

    def order(self, ask: PinAsk) -> None:
        """Asks for a pin; it is refused if, and only if, it has to be."""
        ids = ask.prompt()
        prefix: Prefix = ask.salt, tuple(ids[: len(ids) - len(ids) % BLOCK])
        before = {pin.id: self._prefixes[pin.id] for pin in self._pins}
        refusal = self._refusal(ids, [*before.values(), prefix])
        outcomes = self._engine.order(ids, ask.ttl_s, ask.salt)
        new = {pin.id for pin in self._pins} - before.keys()
        if refusal is None:
            assert bool(new) == (prefix not in before.values())
            self._prefixes.update(dict.fromkeys(new, prefix))
            self._counts["pins"] += len(new)
            self._outcomes.append(outcomes)
            return
        (outcome,) = outcomes
        assert isinstance(outcome, OctavoError)
        assert (outcome.kind, new) == (refusal, set())
        self._counts[f"pins refused: {refusal.name}"] += 1

    def unpin(self, number: int) -> None:
        """Ends one of the pins, whoever reads its blocks."""
        pins = sorted(self._pins, key=lambda pin: pin.id)
        if not pins:
            assert self._engine.unpin("nothing") is not None
            return
        cache, pin = self._engine.cache, pins[number % len(pins)]
        held, available = len(cache.held), cache.num_available
        assert self._engine.unpin(pin.id) is None
        self._was_unpinned = True
        self._engine.scheduler.check_integrity()
        self._pins.check_integrity()
        in_use = held - len(cache.held) > cache.num_available - available
        self._counts["unpinned in use"] += in_use

    def check(self) -> None:
        """The blocks that are held have the content that was promised, and no pin is too old."""
        for pin in self._pins:
            assert pin.expires > self._engine.now
            salt, ids = self._prefixes[pin.id]
            mark = mark_of(hash_root(IDENTITY, salt))
            for i, block in enumerate(pin.blocks):
                wanted = [token ^ mark for token in ids[BLOCK * i : BLOCK * (i + 1)]]
                assert self._engine.runner.pool[block] == wanted, "a pinned block was overwritten"

    def close(self) -> None:
        """All have been answered; what is pinned is hit, and then nothing is."""
        cache = self._engine.cache
        for outcomes in self._outcomes:
            (outcome,) = outcomes
            if isinstance(outcome, OctavoError):
                expected = {PIN_NOT_FOUND: self._was_unpinned, REQUEST_FAILED: self.was_spoiled}
                assert expected[outcome.kind]
        whole = [self._prefixes[pin.id] for pin in self._pins if pin.is_whole]
        for salt, ids in whole:
            probe = make_request(0, [*ids, 1], root=hash_root(IDENTITY, salt))
            assert len(cache.match(probe)) == len(ids) // BLOCK
        if not self.was_spoiled:  # then nothing but time and the caller ends a pin
            assert len(cache.held) == len(_blocks(self._prefixes[pin.id] for pin in self._pins))
        assert cache.num_available == cache.num_allocatable - len(cache.held)
        self._counts["whole at the end"] += len(whole)
        for pin in list(self._pins):
            assert self._engine.unpin(pin.id) is None

    def _refusal(self, ids: list[int], prefixes: list[Prefix]) -> ErrorKind | None:
        if not self._engine.cache.enabled:
            return UNSUPPORTED_PARAMETER
        if len(ids) > self._engine.core.model.capacity.max_model_len:
            return CONTEXT_LENGTH_EXCEEDED
        if len(ids) < BLOCK:
            return INVALID_VALUE
        return PINS_FULL if len(_blocks(prefixes)) > self._pins.budget else None


def _blocks(prefixes: Iterable[Prefix]) -> set[Prefix]:
    """Returns the different blocks of prefixes: each is all that is up to its end."""
    return {
        (salt, ids[:end]) for salt, ids in prefixes for end in range(BLOCK, len(ids) + 1, BLOCK)
    }
