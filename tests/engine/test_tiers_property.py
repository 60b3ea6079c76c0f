"""Few prefixes, asked for again and again, in three tiers that are all too small for them.

The fake runner keeps content per block and per slot, the fake disk per file: a block that is
restored from the wrong place, too early or too late changes the tokens. The disk fails where it
is told to, and the engine is restarted over what it has left on disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fake_disk import FakeDisk
from tests.engine.scheduling import Driver, expected, make_request, prompt_of

from octavo.engine.batch import StepInput
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.request import FinishReason, Request
from octavo.v1.errors import REQUEST_FAILED, OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    steps_before: int
    family: int
    length: int
    max_tokens: int
    n: int
    priority: int
    aborted_after: int
    """Steps; 0 is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of the tiers."""

    num_blocks: int
    host_slots: int
    disk_blocks: int
    disk_pace: int
    mode: PreemptionMode
    prefix_caching: bool


ASKS = st.lists(
    st.builds(
        Ask,
        steps_before=st.integers(0, 6),
        family=st.integers(0, 3),
        length=st.sampled_from([16, 17, 33, 48, 65]),
        max_tokens=st.integers(1, 20),
        n=st.sampled_from([1, 1, 2]),
        priority=st.sampled_from([0, 0, -1]),
        aborted_after=st.sampled_from([0, 0, 0, 1, 5]),
    ),
    min_size=4,
    max_size=16,
)
SIZES = st.builds(
    Sizes,
    num_blocks=st.integers(6, 12),
    host_slots=st.integers(1, 10),
    disk_blocks=st.sampled_from([1, 6, 100]),
    disk_pace=st.sampled_from([0, 1, 3, 100]),
    mode=st.sampled_from(list(PreemptionMode)),
    prefix_caching=st.sampled_from([True, True, True, False]),
)


class Life:
    """One life of an engine over a disk."""

    def __init__(self, disk: FakeDisk, sizes: Sizes, failing: frozenset[int]) -> None:
        self.failing = failing
        self.driver = Driver(
            num_blocks=sizes.num_blocks,
            host_slots=sizes.host_slots,
            disk=disk,
            disk_blocks=sizes.disk_blocks,
            disk_pace=sizes.disk_pace,
            prefix_caching=sizes.prefix_caching,
            preemption=Preemption(mode=sizes.mode),
            before=self.break_step,
        )
        self.driver.mirror.replay()

    def break_step(self, _: StepInput) -> None:
        if len(self.driver.runner.steps) - 1 in self.failing:
            raise OctavoError(REQUEST_FAILED)

    def serve(self, asks: list[Ask]) -> None:
        driver = self.driver
        aborts: dict[int, list[Request]] = {}
        choices: list[Request] = []
        clock = 0

        def step() -> None:
            nonlocal clock
            clock += 1
            driver.step()
            for request in aborts.pop(clock, ()):
                if not request.is_finished:
                    driver.end(request, FinishReason.ABORT)

        for i, ask in enumerate(asks):
            for _ in range(ask.steps_before):
                step()
            prompt = prompt_of(65, ask.family)[: ask.length]
            request = make_request(
                10 * (i + 1), prompt, max_tokens=ask.max_tokens, n=ask.n, priority=ask.priority
            )
            choices += [request, *request.siblings]
            if ask.aborted_after:
                aborts.setdefault(clock + ask.aborted_after, []).append(request)
            driver.add(request)
        while driver.scheduler.has_work() or aborts:
            step()
            assert clock < 2000, "no end"
        for choice in choices:
            assert choice.output_ids == expected(choice)[: len(choice.output_ids)]
            if choice.finish_reason is FinishReason.LENGTH:
                assert len(choice.output_ids) == choice.stop.max_tokens
            elif choice.finish_reason is FinishReason.ERROR:
                assert self.failing
            else:
                assert choice.finish_reason is FinishReason.ABORT


@settings(max_examples=150, deadline=None)
@given(
    lives=st.lists(ASKS, min_size=1, max_size=2),
    sizes=SIZES,
    failing=st.frozensets(st.integers(0, 40), max_size=2),
    bad_jobs=st.frozensets(st.integers(0, 60), max_size=8),
)
def test_whatever_tier_content_comes_from_the_tokens_are_right(
    lives: list[list[Ask]], sizes: Sizes, failing: frozenset[int], bad_jobs: frozenset[int]
) -> None:
    """Semantics 5, 12 to 17, 19, 34; integrity and events are checked after each step."""
    disk = FakeDisk(limit=12, fails=lambda job: job in bad_jobs)
    for asks in lives:
        life = Life(disk, sizes, failing)
        life.serve(asks)
        life.driver.cache.check_integrity()
    life.driver.assert_idle()
