"""What the property of everything draws: an engine, and what is asked of it, life after life."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st
from tests.fakes import BLOCK

from octavo.engine.policy import Policy
from octavo.engine.preemption import PreemptionMode

Fate = Literal["", "abort", "late", "impatient", "poison", "mask", "break"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request."""

    steps_before: int
    family: int
    """Requests of one family begin alike."""
    salt: str
    length: int
    max_tokens: int
    width: int
    """Choices, or the beams of a search."""
    searches: bool
    priority: int
    key: str
    deaths: int
    fate: Fate
    """It is aborted, its time is over while it runs or waits, its logits are not finite, it has no
    token left to choose, or it breaks its steps."""
    at: int
    """When: after so many steps, with so many outputs, or at four times this position."""
    spares_first: bool
    """Whether poison and mask are for the other choices alone; beams have them in common."""

    @property
    def is_search(self) -> bool:
        """Whether it asks for beams."""
        return self.searches and self.width > 1

    def prompt(self) -> list[int]:
        """Its token ids."""
        return prompt_of(self.family, self.length)

    def spoils(self, choice: int) -> bool:
        """Whether the fate is this choice's."""
        return choice > 0 or not self.spares_first

    def blocks(self, *, beams: bool) -> int:
        """What it needs at full length: one choice of it, or all its beams."""
        own = -(-(self.length + self.max_tokens) // BLOCK)
        shared = self.length // BLOCK
        return shared + self.width * (own - shared) if beams and self.is_search else own


@dataclass(frozen=True, slots=True, kw_only=True)
class PinAsk:
    """A prefix to be pinned."""

    steps_before: int
    family: int
    salt: str
    length: int
    ttl_s: float | None

    def prompt(self) -> list[int]:
        """Its token ids."""
        return prompt_of(self.family, self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinAsk:
    """One of the pins that there are ends."""

    steps_before: int
    number: int


Action = Ask | PinAsk | UnpinAsk


def prompt_of(family: int, length: int) -> list[int]:
    """A prompt that shares no prefix with those of other families."""
    return [(family * 7919 + i * 31) % 256 for i in range(length)]


FAMILIES = st.integers(0, 2)
SALTS = st.sampled_from(["", "", "", "s"])
_ASK = st.builds(
    Ask,
    steps_before=st.integers(0, 4),
    family=FAMILIES,
    salt=SALTS,
    length=st.sampled_from([1, 15, 16, 17, 33, 48, 70]),
    max_tokens=st.integers(1, 36),
    width=st.sampled_from([1, 1, 2, 3]),
    searches=st.booleans(),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    key=st.sampled_from(["", "a", "b"]),
    deaths=st.sampled_from([0, 0, 0, 0, 1]),
    fate=st.sampled_from(
        ["", "", "", "", "", "abort", "abort", "late", "impatient", "poison", "mask", "break"]
    ),
    at=st.integers(0, 24),
    spares_first=st.booleans(),
)
_PIN = st.builds(
    PinAsk,
    steps_before=st.integers(0, 4),
    family=FAMILIES,
    salt=SALTS,
    length=st.sampled_from([15, 16, 20, 33, 40, 48, 70]),
    ttl_s=st.sampled_from([None, None, 0.05, 0.3]),
)
_UNPIN = st.builds(UnpinAsk, steps_before=st.integers(0, 4), number=st.integers(0, 3))
# Several requests to one pin: `one_of` would take each kind as often.
_ACTION: st.SearchStrategy[Action] = st.sampled_from(
    [_ASK] * 9 + [_PIN] * 2 + [_UNPIN] * 2
).flatmap(lambda kind: kind)
LIVES = st.lists(st.lists(_ACTION, min_size=10, max_size=30), min_size=1, max_size=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """An engine."""

    room: int
    """Blocks beyond those of the largest request and all pins: none is a pool that just fits."""
    for_searches: bool
    """Whether each search has room, too; else some are refused."""
    pin_blocks: int
    host_slots: int
    disk_blocks: int
    disk_pace: int
    """Jobs that the disk does between two steps; -1: there is none."""
    max_num_seqs: int
    max_batched_tokens: int
    mode: PreemptionMode
    policy: Policy
    max_preemptions: int
    prefix_caching: bool
    failing: frozenset[int]
    """Steps that break, unless one request is alone in them."""
    bad_jobs: frozenset[int]
    """Of the disk."""

    def num_blocks(self, lives: Iterable[Iterable[Action]]) -> int:
        """How large the pool is."""
        asks = (ask for life in lives for ask in life if isinstance(ask, Ask))
        largest = max((ask.blocks(beams=self.for_searches) for ask in asks), default=1)
        return largest + self.pin_blocks + self.room


SIZES = st.builds(
    Sizes,
    room=st.sampled_from([0, 0, 0, 1, 3, 8]),
    for_searches=st.booleans(),
    pin_blocks=st.sampled_from([6, 6, 3, 0]),
    host_slots=st.sampled_from([8, 3, 12, 40, 0]),
    disk_blocks=st.sampled_from([50, 50, 2]),
    disk_pace=st.sampled_from([100, 4, 1, 100, 0, -1]),
    max_num_seqs=st.sampled_from([4, 8]),
    max_batched_tokens=st.sampled_from([16, 40, 64]),
    mode=st.sampled_from(list(PreemptionMode)),
    policy=st.sampled_from(["priority", "shortest", "fair"]),
    max_preemptions=st.sampled_from([0, 1, 3]),
    prefix_caching=st.sampled_from([True] * 6 + [False]),
    failing=st.frozensets(st.integers(0, 80), max_size=3),
    bad_jobs=st.frozensets(st.integers(0, 60), max_size=4),
)


def longest(lives: Iterable[Iterable[Action]]) -> int:
    """Tokens of the longest choice."""
    asks = (ask for life in lives for ask in life if isinstance(ask, Ask))
    return max((ask.length + ask.max_tokens for ask in asks), default=BLOCK)
