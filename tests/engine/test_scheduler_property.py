"""Random workloads, driven to their end: who is served, with which tokens, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.fake_disk import FakeDisk
from tests.engine.scheduling import Driver, expected, make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.batch import StepInput
from octavo.engine.policy import Policy
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.request import FinishReason, Request, RequestId, Status
from octavo.v1.errors import REQUEST_FAILED, OctavoError

RUBBISH = 999


class NewDriver(Protocol):
    """Makes a driver with the sizes of a workload."""

    def __call__(
        self, *, before: Callable[[StepInput], None], poison: Callable[[Request], bool]
    ) -> Driver: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a workload."""

    at: int
    """Step before which it comes."""
    shared: int
    """Tokens of the common prefix."""
    own: int
    max_tokens: int
    n: int
    priority: int
    key: str
    prompt_logprobs: bool
    fate: str
    """What happens to it: nothing, aborted, breaks its step, gives logits that are not finite."""
    seed: int = 0
    """Requests with the same one have the same own tokens; 0 has none like it."""
    fate_at: int
    """After so many steps, or at this position."""


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 12),
        shared=st.sampled_from([0, 0, 15, 16, 32, 40]),
        own=st.integers(1, 40),
        max_tokens=st.integers(1, 24),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        key=st.sampled_from(["", "a", "b"]),
        prompt_logprobs=st.sampled_from([False, False, True]),
        fate=st.sampled_from(["", "", "", "abort", "late", "break", "poison"]),
        seed=st.sampled_from([0, 0, 101, 102]),
        fate_at=st.integers(0, 60),
    ),
    min_size=1,
    max_size=12,
)


class World:
    """A driver with a workload and its misfortunes."""

    def __init__(self, arrivals: list[Arrival], failing: set[int], new_driver: NewDriver) -> None:
        self.driver = new_driver(before=self.break_step, poison=self.is_poisoned)
        self.failing = failing
        self.fates: dict[RequestId, tuple[str, int]] = {}
        self.choices: list[Request] = []
        self.steps = 0
        self.pending: dict[int, list[Request]] = {}
        for i, arrival in enumerate(arrivals):
            prompt = prompt_of(64)[: arrival.shared] + prompt_of(arrival.own, arrival.seed or i + 1)
            late = arrival.fate == "late"
            request = make_request(
                10 * (i + 1),
                prompt,
                max_tokens=arrival.max_tokens,
                n=arrival.n,
                priority=arrival.priority,
                fairness_key=arrival.key,
                arrival=float(arrival.at),
                prompt_logprobs=1 if arrival.prompt_logprobs else None,
                deadline=float(arrival.at + arrival.fate_at) if late else None,
            )
            for choice in (request, *request.siblings):
                self.fates[choice.id] = (arrival.fate, arrival.fate_at)
                self.choices.append(choice)
            self.pending.setdefault(arrival.at, []).append(request)

    def is_poisoned(self, request: Request) -> bool:
        fate, at = self.fates[request.id]
        return fate == "poison" and len(request.output_ids) >= at // 4

    def break_step(self, step: StepInput) -> None:
        """Some requests break the step that reaches a position, some steps break by themselves."""
        broken = self.steps in self.failing
        for row in step.rows:
            fate, at = self.fates[row.request.id]
            broken = broken or (fate == "break" and row.start + len(row.token_ids) > at)
        if broken:
            pool = self.driver.runner.pool
            for row in step.rows:
                for position in range(row.start, row.start + len(row.token_ids)):
                    pool[row.block_table[position // BLOCK]][position % BLOCK] = RUBBISH
            raise OctavoError(REQUEST_FAILED)

    def run(self) -> None:
        while self.pending or self.driver.scheduler.has_work():
            self.driver.add(*self.pending.pop(self.steps, ()))
            before = {c: c.status for c in self.choices}
            step = self.driver.step()
            self.steps += 1
            if step is not None:
                self.check_step(step, before)
            for choice in self.choices:
                fate, at = self.fates[choice.id]
                if fate == "abort" and self.steps >= at and choice.status is not Status.FINISHED:
                    self.driver.end(choice, FinishReason.ABORT)
            assert self.steps < 3000, "no end"

    def check_step(self, step: StepInput, before: dict[Request, Status]) -> None:
        config = self.driver.config
        assert 0 < step.num_tokens <= config.max_batched_tokens
        ids = [row.request.id for row in step.rows]
        assert len(ids) == len(set(ids)) <= config.max_num_seqs
        written = {target for _, target in step.copies}
        assert len(written) == len(step.copies)
        # Nothing is admitted that does not outrank what was preempted (semantics 30).
        preempted = [
            c
            for c, status in before.items()
            if status is Status.RUNNING and c.status is Status.PREEMPTED and c.id not in ids
        ]
        admitted = [r.request for r in step.rows if before[r.request] is not Status.RUNNING]
        if preempted and len(step.rows) > 1:
            assert all(a.priority < min(p.priority for p in preempted) for a in admitted)
        # No victim has a row, so no token is to be given back to the budget (semantics 35).
        if self.driver.outcomes[-1]:
            assert all(row.request.status is not Status.PREEMPTED for row in step.rows)

    def check_end(self) -> None:
        driver = self.driver
        for choice in self.choices:
            wanted, got = expected(choice), choice.output_ids
            assert got == wanted[: len(got)]
            fate = self.fates[choice.id][0]
            failed = choice.finish_reason is FinishReason.ERROR
            if fate in {"", "break"} and not failed:
                assert choice.finish_reason is FinishReason.LENGTH
                assert got == wanted
            if failed:
                assert fate in {"break", "poison"} or self.failing
        asked = [
            (row.request.id, position)
            for step, ok in zip(driver.runner.steps, driver.outcomes, strict=True)
            if ok
            for row in step.rows
            if row.prompt_logprobs is not None
            for position in range(
                row.start + 1,
                min(row.start + len(row.token_ids) + 1, len(row.request.prompt_ids)),
            )
        ]
        assert len(asked) == len(set(asked))
        for choice in self.choices:
            if choice.prompt_logprobs is not None and choice.output_ids and choice.id % 10 == 0:
                count = sum(1 for id_, _ in asked if id_ == choice.id)
                assert count == len(choice.prompt_ids) - 1


def new_disk(limit: int, failing: set[int]) -> FakeDisk:
    return FakeDisk(limit, lambda job: job in failing)


@settings(max_examples=150)
@given(
    arrivals=ARRIVALS,
    failing=st.sets(st.integers(0, 30), max_size=3),
    num_blocks=st.integers(7, 24),
    max_num_seqs=st.integers(3, 8),
    max_batched_tokens=st.sampled_from([16, 40, 64, 200]),
    long_prefill_tokens=st.sampled_from([16, 33, 200]),
    prefix_caching=st.sampled_from([True, True, False]),
    scheduling_policy=st.sampled_from(["priority", "shortest", "fair"]),
    max_preemptions=st.sampled_from([0, 1, 3]),
    host_slots=st.sampled_from([0, 0, 2, 5, 12, 40]),
    disk=st.none()
    | st.builds(new_disk, st.sampled_from([2, 9, 1000]), st.sets(st.integers(0, 60))),
    disk_blocks=st.sampled_from([1, 4, 50]),
    disk_pace=st.sampled_from([0, 1, 4]),
    mode=st.sampled_from(list(PreemptionMode)),
)
def test_every_request_ends_with_its_own_tokens_and_nothing_is_left(
    arrivals: list[Arrival],
    failing: set[int],
    num_blocks: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    long_prefill_tokens: int,
    prefix_caching: bool,
    scheduling_policy: Policy,
    max_preemptions: int,
    host_slots: int,
    disk: FakeDisk | None,
    disk_blocks: int,
    disk_pace: int,
    mode: PreemptionMode,
) -> None:
    """Semantics 17, 34, 47; reliability E1 to E6."""
    new_driver = partial(
        Driver,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        long_prefill_tokens=long_prefill_tokens,
        prefix_caching=prefix_caching,
        scheduling_policy=scheduling_policy,
        max_preemptions=max_preemptions,
        host_slots=host_slots,
        disk=disk,
        disk_blocks=disk_blocks,
        disk_pace=disk_pace,
        preemption=Preemption(mode=mode),
    )
    world = World(arrivals, failing, new_driver)
    world.run()
    world.check_end()
    world.driver.assert_idle()
