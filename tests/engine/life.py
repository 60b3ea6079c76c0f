"""One life of an engine over a disk: what is asked of it, and whether it keeps its word."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Any

from tests.engine.beams import beam, found, wanted
from tests.engine.careless_runner import BrokenStepError, CarelessRunner
from tests.engine.event_mirror import EventMirror
from tests.engine.fake_disk import FakeDisk
from tests.engine.harness import generate
from tests.engine.pin_book import PinBook
from tests.engine.pinning import PinningEngine
from tests.engine.scheduling import make_request
from tests.engine.workload import Action, Ask, PinAsk, Sizes, UnpinAsk
from tests.fakes import EOS, expected_output

from octavo.engine.batch import StepInput
from octavo.engine.core import Ticket
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.request import Request, RequestId, Status
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import (
    DEADLINE_EXCEEDED,
    INVALID_VALUE,
    NEVER_FITS,
    QUEUE_TIMEOUT,
    REQUEST_FAILED,
    OctavoError,
)

STEP_MS = 10
ENDS = {
    "late": DEADLINE_EXCEEDED,
    "impatient": QUEUE_TIMEOUT,
    "poison": REQUEST_FAILED,
    "mask": INVALID_VALUE,
    "break": REQUEST_FAILED,
}
"""With which error a request of this fate may end."""
LENGTH = common_pb2.FINISH_REASON_LENGTH
ERROR = common_pb2.FINISH_REASON_ERROR
ABORT = common_pb2.FINISH_REASON_ABORT


class FicklePreemption(Preemption):
    """Swaps and recomputes by turns, as one does whose prices change."""

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Has no reason."""
        if self.mode is not PreemptionMode.AUTO:
            return super().prefers_swap(num_blocks=num_blocks, num_tokens=num_tokens)
        return bool(num_tokens % 2)


class Life:
    """An engine and what was asked of it.

    Args:
        sizes: of the engine.
        num_blocks: of its pool.
        max_model_len: of the longest choice.
        disk: what is below the host tier; None: nothing.
    """

    def __init__(
        self, sizes: Sizes, *, num_blocks: int, max_model_len: int, disk: FakeDisk | None
    ) -> None:
        self.counts: Counter[str] = Counter()
        """What has happened, for whoever wants to know that it does."""
        self._sizes = sizes
        self._disk = disk
        self._turns = 0
        self._hangs = False
        """Whether requests wait for a disk that does nothing: then time goes faster."""
        self._asked: dict[Ticket, tuple[Ask, engine_pb2.GenerateRequest]] = {}
        self._aborts: dict[int, list[Ticket]] = {}
        self._asks: dict[RequestId, tuple[Ask, int]] = {}
        """What was asked, and which choice of it this is."""
        self._struck: set[RequestId] = set()
        """Requests that were poisoned, or broke a step, themselves or by their beams."""
        self._poisoned: list[Request] = []
        """In the present step."""
        self._runner = CarelessRunner(
            before=self._break_some, poison=self._is_poisoned, mask=self._is_masked
        )
        self.engine = PinningEngine(
            pin_blocks=sizes.pin_blocks,
            step_s=STEP_MS / 1e3,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_seqs=sizes.max_num_seqs,
            max_batched_tokens=sizes.max_batched_tokens,
            prefix_caching=sizes.prefix_caching,
            scheduling_policy=sizes.policy,
            max_preemptions=sizes.max_preemptions,
            host_slots=sizes.host_slots,
            disk=disk,
            disk_blocks=sizes.disk_blocks,
            preemption=FicklePreemption(mode=sizes.mode),
            runner=self._runner,
        )
        self._book = PinBook(self.engine, self.counts)
        self._mirror = EventMirror(self.engine.cache)

    def run(self, actions: list[Action]) -> None:
        """Does what is asked, and steps until all has ended."""
        for number, action in enumerate(actions):
            for _ in range(action.steps_before):
                self.step()
            match action:
                case Ask():
                    self._submit(number, action)
                case PinAsk():
                    self._book.order(action)
                case UnpinAsk():
                    self._book.unpin(action.number)
        while self.engine.core.num_open:
            self.step()
            assert self._turns < 5000, "no end"

    def step(self) -> None:
        """One step and what happens beside it, each followed by all invariants."""
        self._turns += 1
        self._poisoned.clear()
        if self._hangs:
            self.engine.now += 1.0
        ran = self.engine.step()
        assert not self._runner.faults, self._runner.faults
        self.counts["steps"] += ran
        if self._disk is not None:
            self._disk.work(self._sizes.disk_pace)
            self._hangs = not (ran or self._sizes.disk_pace)
        self._mirror.replay()
        self._book.check()
        self._check_poisoned()
        for ticket in self._aborts.pop(self._turns, ()):
            self.engine.deltas[ticket] += self.engine.core.abort(ticket)
            self.engine.scheduler.check_integrity()

    def check(self) -> None:
        """Every request has ended once, with the tokens of an undisturbed run up to its fate."""
        for ticket, (ask, proto) in self._asked.items():
            deltas = self.engine.deltas[ticket]
            assert sum(delta.HasField("usage") for delta in deltas) == 1
            ends = [self.engine.last(ticket, choice.index) for choice in ticket.choices]
            for end in ends:
                assert [d for d in deltas if d.choice == end.choice][-1] is end
                self._check_reason(ask, end)
            if ask.is_search:
                self._check_search(ask, proto, ticket, {end.finish_reason for end in ends})
                continue
            for end in ends:
                self._check_choice(ask, end, self.engine.ids(ticket, end.choice), proto)

    def close(self) -> None:
        """Nothing is in use but what is pinned, and then nothing at all."""
        scheduler, host = self.engine.scheduler, self.engine.cache.host.counts()
        assert scheduler.requests() == []
        assert host.used == 0
        self._book.close()
        assert self.engine.cache.num_available == self.engine.cache.num_allocatable
        self.counts["swapped"] += scheduler.num_swaps
        self.counts["recomputed"] += scheduler.num_preemptions - scheduler.num_swaps
        self.counts["restored"] += host.restored
        self.counts["read from disk"] += host.read

    def _submit(self, number: int, ask: Ask) -> None:
        fields: dict[str, Any] = {
            "n": ask.width,
            "max_tokens": ask.max_tokens,
            "request_id": str(number),
            "cache_salt": ask.salt,
            "priority": ask.priority,
            "fairness_key": ask.key,
            "deaths": ask.deaths,
            "remaining_ms": STEP_MS * (ask.at + 1) if ask.fate == "late" else 0,
            "max_queue_ms": STEP_MS * (ask.at + 1) if ask.fate == "impatient" else 0,
        }
        if ask.is_search:
            proto = beam(ask.prompt(), ask.width, **fields)
        else:
            proto = generate(ask.prompt(), seed=number, ignore_eos=True, **fields)
        room = self.engine.cache.num_allocatable - self._sizes.pin_blocks
        lacking = ask.blocks(beams=True) - room
        try:
            ticket = self.engine.submit(proto)
        except OctavoError as error:
            if error.kind is not NEVER_FITS or lacking <= 0:
                raise
            self.counts["never fits"] += 1
            return
        assert lacking <= 0
        self.counts["fits exactly"] += lacking == 0
        self._asked[ticket] = ask, proto
        for choice in ticket.choices:
            self._asks[choice.request.id] = ask, choice.index
        if ask.fate == "abort":
            self._aborts.setdefault(self._turns + ask.at + 1, []).append(ticket)

    def _break_some(self, step: StepInput) -> None:
        owners = {row.request.owner for row in step.rows}
        assert all(owner.status is Status.RUNNING for owner in owners), "a victim has a row"
        breaks = self._turns in self._sizes.failing and len(owners) > 1
        for row in step.rows:
            ask, _ = self._asks.get(row.request.owner.id, (None, 0))
            end = row.start + len(row.token_ids)
            if ask is not None and ask.fate == "break" and end > 4 * ask.at:
                self._struck.add(row.request.owner.id)
                breaks = True
        if breaks:
            raise BrokenStepError

    def _is_poisoned(self, request: Request) -> bool:
        if not self._strikes("poison", request):
            return False
        self._struck.add(request.owner.id)
        self._poisoned.append(request)
        return True

    def _is_masked(self, request: Request) -> bool:
        return self._strikes("mask", request)

    def _strikes(self, fate: str, request: Request) -> bool:
        ask, choice = self._asks.get(request.owner.id, (None, 0))
        if ask is None or ask.fate != fate or len(request.output_ids) < ask.at:
            return False
        return ask.is_search or ask.spoils(choice)

    def _check_poisoned(self) -> None:
        """What a poisoned choice has read or written is hit by nobody, pinned or not."""
        cache = self.engine.cache
        rows = self._runner.steps[-1].rows if self._poisoned else ()
        for row in rows:
            if not any(spec.request in self._poisoned for spec in row.samples):
                continue
            self._book.was_spoiled = True
            ids = row.request.tokens(0, row.start + len(row.token_ids))
            probe = make_request(0, [*ids, 0], root=row.request.hash_root)
            assert not {*row.block_table} & {*cache.match(probe), *cache.held.references}
            probe.extend_hashes(cache.block_tokens)
            assert not any(cache.host.parent_of(hash_) for hash_ in probe.block_hashes)

    def _check_reason(self, ask: Ask, end: engine_pb2.Delta) -> None:
        if end.finish_reason == ERROR:
            assert ask.fate in ENDS, f"{end.error.code}: {ask}"
            assert end.error.code == ENDS[ask.fate].code
            self.counts[ask.fate] += 1
        elif end.finish_reason == ABORT:
            assert ask.fate == "abort"
            self.counts["abort"] += 1

    def _check_choice(
        self, ask: Ask, end: engine_pb2.Delta, got: list[int], proto: engine_pb2.GenerateRequest
    ) -> None:
        seed = proto.sampling.seed + end.choice
        whole = expected_output(ask.prompt(), seed, ask.max_tokens)
        told: float = len(whole)
        if ask.fate == "break":
            told = 4 * ask.at - ask.length + 1
        elif ask.fate in {"poison", "mask"} and ask.spoils(end.choice):
            told = ask.at
        elif end.finish_reason in {ERROR, ABORT}:
            told = len(got)  # time alone decides
        assert got == whole[: max(0, min(int(told), len(whole)))]
        assert (end.finish_reason == LENGTH) == (len(got) == len(whole))

    def _check_search(
        self,
        ask: Ask,
        proto: engine_pb2.GenerateRequest,
        ticket: Ticket,
        reasons: set[common_pb2.FinishReason.ValueType],
    ) -> None:
        best = wanted(proto, EOS, masked_from=ask.at if ask.fate == "mask" else inf)
        failed = ERROR in reasons
        if ask.fate in {"poison", "break"}:
            assert failed == (ticket.choices[0].request.id in self._struck)
        elif ask.fate == "mask":
            assert failed == (len(best) < ask.width)
        if failed or ABORT in reasons:
            assert len(reasons) == 1, "a search ends as one"
            best = [[]] * ask.width
        assert found(self.engine, ticket) == best
