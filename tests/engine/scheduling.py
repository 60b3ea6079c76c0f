"""What the tests of the scheduler and the cache share: requests, and a loop that plays the core."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from tests.engine.event_mirror import EventMirror
from tests.engine.fake_disk import FakeDisk
from tests.fakes import BLOCK, FakeRunner, expected_output

from octavo.engine.batch import Runner, StepInput
from octavo.engine.beam_search import BeamParams, BeamSearch
from octavo.engine.block_manager import BlockManager
from octavo.engine.host_tier import HostTier
from octavo.engine.policy import Policy
from octavo.engine.preemption import Preemption
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import (
    Beams,
    FinishReason,
    Request,
    RequestId,
    SamplingParams,
    StopParams,
)
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.v1.block_hash import BlockHash, hash_root
from octavo.v1.errors import OctavoError

ROOT = hash_root(b"model")


def prompt_of(length: int, seed: int = 0) -> list[int]:
    """A prompt that shares no prefix with those of other seeds."""
    return random.Random(seed).choices(range(256), k=length)


def make_request(
    id: int,
    prompt: Sequence[int],
    *,
    max_tokens: int = 4,
    n: int = 1,
    priority: int = 0,
    fairness_key: str = "",
    arrival: float | None = None,
    root: BlockHash = ROOT,
    prompt_logprobs: int | None = None,
    score_only: bool = False,
    deadline: float | None = None,
    queue_deadline: float | None = None,
) -> Request:
    """A request; siblings have the ids after its own, and seeds as ids."""
    choices = [
        Request(
            id=RequestId(id + i),
            prompt_ids=tuple(prompt),
            sampling=SamplingParams(seed=id + i),
            stop=StopParams(max_tokens=max_tokens),
            arrival=float(id) if arrival is None else arrival,
            hash_root=root,
            priority=priority,
            fairness_key=fairness_key,
            prompt_logprobs=prompt_logprobs,
            score_only=score_only,
            deadline=deadline,
            queue_deadline=queue_deadline,
        )
        for i in range(n)
    ]
    choices[0].siblings = tuple(choices[1:])
    return choices[0]


def make_search(
    id: int, prompt: Sequence[int], *, width: int = 3, max_tokens: int = 20, arrival: float = 0.0
) -> tuple[Request, Beams]:
    """A request of a beam search, and its beams, which have the ids after its own."""
    carrier = make_request(id, prompt, max_tokens=max_tokens, arrival=arrival)
    beams = [
        dataclasses.replace(
            carrier, id=RequestId(id + i), carrier=carrier, output_ids=[], block_hashes=[]
        )
        for i in range(1, width + 1)
    ]
    params = BeamParams(width=width, max_tokens=max_tokens, end_token_ids=frozenset())
    carrier.beams = Beams(search=BeamSearch(params), idle=beams)
    return carrier, carrier.beams


class Driver:
    """Scheduler and cache on a fake runner, with all invariants checked after every step.

    The runner reads token ids back through the block tables, so tokens are right only if tables,
    sharing, copies and eviction are.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_num_seqs: int = 8,
        max_batched_tokens: int = 64,
        long_prefill_tokens: int = 48,
        watermark: float = 0.0,
        max_queued_requests: int = 1000,
        max_queued_tokens: int = 100_000,
        prefix_caching: bool = True,
        scheduling_policy: Policy = "priority",
        ageing_s_per_token: float = 0.01,
        max_preemptions: int = 3,
        host_slots: int = 0,
        disk: FakeDisk | None = None,
        disk_blocks: int = 100,
        disk_pace: int = 1,
        preemption: Preemption | None = None,
        before: Callable[[StepInput], None] = lambda _: None,
        poison: Callable[[Request], bool] = lambda _: False,
        runner: Runner | None = None,
    ) -> None:
        self.runner = FakeRunner(before=before, poison=poison)
        self.disk = disk
        self.disk_pace = disk_pace
        """Jobs that the disk does between two steps."""
        self.computes: Runner = runner or self.runner
        self.cache = PrefixCache(
            BlockManager(num_blocks + 1, BLOCK),
            enabled=prefix_caching,
            host=HostTier(
                host_slots, disk=None if disk is None else disk.tier(disk_blocks), pages=self.runner
            ),
        )
        self.config = SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            long_prefill_tokens=long_prefill_tokens,
            watermark=watermark,
            max_queued_requests=max_queued_requests,
            max_queued_tokens=max_queued_tokens,
            scheduling_policy=scheduling_policy,
            ageing_s_per_token=ageing_s_per_token,
            max_preemptions=max_preemptions,
        )
        self.scheduler = Scheduler(self.config, self.cache, preemption)
        self.now = 0.0
        self.prefill_us_per_token = 0.0
        self.mirror = EventMirror(self.cache)
        self.known = self.mirror.known
        self.errors: dict[RequestId, str] = {}
        self.expired: list[RequestId] = []
        self.outcomes: list[bool] = []
        """For each step that was run, whether it succeeded."""

    def add(self, *requests: Request) -> None:
        """Queues requests."""
        for request in requests:
            self.scheduler.add([request], self.now, prefill_us_per_token=self.prefill_us_per_token)

    def plan(self) -> StepInput | None:
        """Schedules a step and leaves it in flight."""
        self.now += 1.0
        step = self.scheduler.schedule(self.now)
        self.scheduler.check_integrity()
        return step

    def step(self) -> StepInput | None:
        """Plays one step of the core."""
        if self.disk is not None:
            self.disk.work(self.disk_pace)
        self.cache.host.poll()
        for request in self.scheduler.expire(self.now + 1.0):
            self.expired.append(request.id)
            self.end(request, FinishReason.ABORT)
        step = self.plan()
        for request, error in self.scheduler.drain_rejected():
            self.errors[request.id] = error.kind.name
            self.end(request, FinishReason.ERROR)
        if step is not None:
            self.run(step)
        self.scheduler.check_integrity()
        self.mirror.replay()
        return step

    def run(self, step: StepInput) -> None:
        """Runs a planned step and handles its outcome."""
        try:
            output = self.computes.run(step)
        except OctavoError as error:
            self.outcomes.append(False)
            for request in self.scheduler.fail(step):
                self.errors[request.id] = error.kind.name
                self.end(request, FinishReason.ERROR)
            return
        self.outcomes.append(True)
        choices = [spec.request for row in step.rows for spec in row.samples]
        poisoned = frozenset(r.id for r in choices if not output.sampled[r.id].token_ids)
        self.scheduler.commit(step, poisoned=poisoned)
        for request in choices:
            request.output_ids += output.sampled[request.id].token_ids
            if request.id in poisoned:
                self.errors[request.id] = "poisoned"
                self.end(request, FinishReason.ERROR)
            elif len(request.output_ids) == request.stop.max_tokens:
                self.end(request, FinishReason.LENGTH)
        for row in step.rows:
            ended = row.start + len(row.token_ids) == row.request.num_tokens
            if row.request.score_only and ended:
                self.end(row.request, FinishReason.LENGTH)

    def end(self, request: Request, reason: FinishReason) -> None:
        """Finishes a request and the siblings that it carries."""
        for choice in (request, *request.siblings):
            choice.finish_reason = reason
        self.scheduler.finish(request)

    def finish_all(self, limit: int = 2000) -> int:
        """Steps until nothing is left; returns the number of steps."""
        for count in range(limit):
            if not self.scheduler.has_work():
                return count
            known = len(self.errors) + len(self.expired)
            ran = self.step() is not None or (self.disk is not None and bool(self.disk.reads))
            assert ran or len(self.errors) + len(self.expired) > known, "work, but nothing runs"
        raise AssertionError(f"not finished after {limit} steps")

    def assert_idle(self) -> None:
        """Nothing is in use once all requests have ended."""
        assert self.scheduler.requests() == []
        assert self.cache.num_available == self.cache.num_allocatable
        assert self.cache.host.counts().used == 0
        assert self.cache.reset()
        if self.disk is not None:
            self.disk.work()
            assert self.disk.files == {}
        self.mirror.replay()
        assert self.mirror.known == {}


def rows_of(step: StepInput | None) -> list[tuple[int, int, int]]:
    """(request id, start, length) of a step's rows."""
    assert step is not None
    return [(r.request.id, r.start, len(r.token_ids)) for r in step.rows]


def expected(request: Request) -> list[int]:
    """What the fake model says to a request that runs to its length."""
    return expected_output(request.prompt_ids, request.sampling.seed, request.stop.max_tokens)
