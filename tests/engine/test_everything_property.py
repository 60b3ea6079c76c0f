"""Everything at once: choices, beams, policies, preemption, swap, tiers, aborts, deadlines, faults.

Whatever the mix, each request ends, with the tokens of an undisturbed run unless it was ended
early, and nothing stays in use.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.engine.beams import beam, found, wanted
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import Engine, generate
from tests.fakes import EOS, FakeRunner, expected_output

from octavo.engine.batch import StepInput
from octavo.engine.core import Ticket
from octavo.engine.policy import Policy
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import NEVER_FITS, OctavoError

STEPS = 10_000
"""Of all examples together, at least."""
ERROR = common_pb2.FINISH_REASON_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request of a workload."""

    steps_before: int
    family: int
    """Requests of one family begin alike."""
    length: int
    max_tokens: int
    width: int
    """Choices, or the beams of a search."""
    searches: bool
    priority: int
    key: str
    aborted_after: int
    """Steps; 0: never."""
    remaining_ms: int


ASKS = st.lists(
    st.builds(
        Ask,
        steps_before=st.integers(0, 4),
        family=st.integers(0, 4),
        length=st.sampled_from([1, 15, 16, 17, 33, 48, 70]),
        max_tokens=st.integers(1, 30),
        width=st.sampled_from([1, 1, 2, 3]),
        searches=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        key=st.sampled_from(["", "a", "b"]),
        aborted_after=st.sampled_from([0, 0, 0, 1, 5, 20]),
        remaining_ms=st.sampled_from([0, 0, 0, 60, 1000]),
    ),
    min_size=8,
    max_size=30,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """An engine."""

    num_blocks: int
    host_slots: int
    disk_pace: int
    """Jobs that the disk does between two steps; -1: there is none."""
    max_batched_tokens: int
    mode: PreemptionMode
    policy: Policy
    max_preemptions: int
    prefix_caching: bool
    failing: frozenset[int]
    """Steps that raise, unless one request is alone in them."""


SIZES = st.builds(
    Sizes,
    num_blocks=st.integers(14, 30),
    host_slots=st.sampled_from([0, 4, 12, 60]),
    disk_pace=st.sampled_from([-1, 0, 1, 100]),
    max_batched_tokens=st.sampled_from([16, 40, 64]),
    mode=st.sampled_from(list(PreemptionMode)),
    policy=st.sampled_from(["priority", "shortest", "fair"]),
    max_preemptions=st.sampled_from([0, 1, 3]),
    prefix_caching=st.sampled_from([True, True, True, False]),
    failing=st.frozensets(st.integers(0, 80), max_size=3),
)


class World:
    """One engine and what was asked of it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.steps = 0
        self.asked: dict[Ticket, tuple[Ask, engine_pb2.GenerateRequest]] = {}
        self.aborts: dict[int, list[Ticket]] = {}
        self.aborted: set[Ticket] = set()
        self.disk = FakeDisk(limit=12) if sizes.disk_pace >= 0 and sizes.host_slots else None
        self.engine = Engine(
            num_blocks=sizes.num_blocks,
            max_model_len=128,
            max_batched_tokens=sizes.max_batched_tokens,
            prefix_caching=sizes.prefix_caching,
            scheduling_policy=sizes.policy,
            max_preemptions=sizes.max_preemptions,
            host_slots=sizes.host_slots,
            disk=self.disk,
            preemption=Preemption(mode=sizes.mode),
            runner=FakeRunner(before=self._break_some),
            clock=lambda: self.steps * 1e-2,
        )

    def _break_some(self, step: StepInput) -> None:
        if self.steps in self.sizes.failing and len({r.request.owner for r in step.rows}) > 1:
            raise RuntimeError("broken")

    def step(self) -> None:
        self.steps += 1
        self.engine.step()
        if self.disk is not None:
            self.disk.work(self.sizes.disk_pace)
        for ticket in self.aborts.pop(self.steps, ()):
            if ticket.open:
                self.engine.core.abort(ticket)
                self.engine.scheduler.check_integrity()
                self.aborted.add(ticket)

    def submit(self, number: int, ask: Ask) -> None:
        prompt = [(ask.family * 7919 + i * 31) % 256 for i in range(ask.length)]
        fields: dict[str, Any] = {
            "n": ask.width,
            "max_tokens": ask.max_tokens,
            "request_id": str(number),
            "priority": ask.priority,
            "fairness_key": ask.key,
            "remaining_ms": ask.remaining_ms,
        }
        if ask.searches and ask.width > 1:
            proto = beam(prompt, ask.width, **fields)
        else:
            proto = generate(prompt, seed=number, ignore_eos=True, **fields)
        try:
            ticket = self.engine.submit(proto)
        except OctavoError as error:
            if error.kind is NEVER_FITS:  # its beams could never be held together
                return
            raise
        self.asked[ticket] = ask, proto
        if ask.aborted_after:
            self.aborts.setdefault(self.steps + ask.aborted_after, []).append(ticket)

    def run(self, asks: list[Ask]) -> None:
        for number, ask in enumerate(asks):
            for _ in range(ask.steps_before):
                self.step()
            self.submit(number, ask)
        while self.engine.core.num_open:
            self.step()
            assert self.steps < 5000, "no end"

    def check(self) -> None:
        for ticket, (ask, proto) in self.asked.items():
            if ticket in self.aborted:
                continue
            ends = [self.engine.last(ticket, choice.index) for choice in ticket.choices]
            if any(end.finish_reason == ERROR for end in ends):
                codes = {end.error.code for end in ends}
                assert ask.remaining_ms, f"{codes} without a deadline"
                continue
            if proto.HasField("beam"):
                assert found(self.engine, ticket) == wanted(proto, EOS)
                continue
            prompt = list(proto.token_ids.ids)
            for choice in ticket.choices:
                seed = proto.sampling.seed + choice.index
                ids = expected_output(prompt, seed, proto.max_tokens)
                assert self.engine.ids(ticket, choice.index) == ids


def test_17_whatever_is_mixed_every_request_ends_and_nothing_stays_in_use() -> None:
    """Semantics 17 to 39, with integrity checked after each step."""
    total: Counter[str] = Counter()

    @settings(max_examples=250, deadline=None)
    @given(asks=ASKS, sizes=SIZES)
    def one(asks: list[Ask], sizes: Sizes) -> None:
        world = World(sizes)
        world.run(asks)
        world.check()
        scheduler = world.engine.scheduler
        counts = world.engine.cache.host.counts()
        event(f"preempted: {scheduler.num_preemptions > 0}, swapped: {scheduler.num_swaps > 0}")
        event(f"restored: {counts.restored > 0}, from disk: {counts.read > 0}")
        world.engine.assert_idle()
        total["steps"] += world.steps
        total["swaps"] += scheduler.num_swaps
        total["recomputed"] += scheduler.num_preemptions - scheduler.num_swaps
        total["restored"] += counts.restored

    one()
    assert total["steps"] >= STEPS, total
    assert all(total[what] for what in ("swaps", "recomputed", "restored")), total
