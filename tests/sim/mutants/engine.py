"""Bugs in scheduler, blocks, steps and sessions of the engine."""

# ruff: noqa: ARG005 - a bug ignores what it should look at

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, mutant

from octavo.engine import delta as deltas
from octavo.engine.core import EngineCore
from octavo.engine.hash_index import HashIndex
from octavo.engine.planner import Planner
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.roster import Roster
from octavo.engine.scheduler import Scheduler
from octavo.engine.stepper import CancelAll, Stepper
from octavo.v1.errors import QUEUE_FULL, OctavoError

MUTANTS: list[Mutant] = []


@mutant(MUTANTS, PrefixCache, "release", "E1")
def last_block_is_leaked(original: Any) -> Any:
    def release(self: PrefixCache, request: Any) -> None:
        for block in self._tables.pop(request.id)[:-1]:
            self._blocks.release(block)

    return release


@mutant(MUTANTS, PrefixCache, "make_writable", "C1", "E1")
def shared_block_is_written(original: Any) -> Any:
    return lambda self, request, position: None


@mutant(MUTANTS, HashIndex, "find", "C1", "E1")
def hit_is_the_wrong_block(original: Any) -> Any:
    def find(self: HashIndex, hash_: bytes) -> Any:
        found = original(self, hash_)
        return found if found is None else next(iter(self))

    return find


@mutant(MUTANTS, PrefixCache, "revoke", "E1", "E2", "C1")
def failed_step_is_published(original: Any) -> Any:
    def revoke(self: PrefixCache) -> None:
        self._index.publish()
        self._unpin()

    return revoke


@mutant(MUTANTS, Roster, "preempt", "E1", "C1")
def preempted_request_is_not_recomputed(original: Any) -> Any:
    def preempt(self: Roster, request: Any, now: float) -> None:
        computed = request.num_computed
        original(self, request, now)
        request.num_computed = computed

    return preempt


@mutant(MUTANTS, Roster, "preempt", "C1", "C3")
def preempted_request_loses_a_token(original: Any) -> Any:
    def preempt(self: Roster, request: Any, now: float) -> None:
        original(self, request, now)
        if len(request.output_ids) > 1:
            request.output_ids.pop()
            self.waiting_tokens -= 1

    return preempt


@mutant(MUTANTS, Planner, "_start", "E6", "E3", "C2")
def choices_never_start_together(original: Any) -> Any:
    def start(self: Planner, plan: Any, request: Any) -> bool:
        return not request.siblings and bool(original(self, plan, request))

    return start


@mutant(MUTANTS, Planner, "_admit_waiting", "E3")
def nobody_joins_who_runs(original: Any) -> Any:
    def admit(self: Planner, plan: Any) -> None:
        if not self._roster.running:
            original(self, plan)

    return admit


@mutant(MUTANTS, Planner, "plan", "C1", "E1")
def tables_are_swapped(original: Any) -> Any:
    def plan(self: Planner, now: float, max_tokens: int | None = None) -> Any:
        step = original(self, now, max_tokens)
        if step is not None and len(step.rows) > 1:
            one, two = step.rows[:2]
            if len(one.block_table) == len(two.block_table):
                table = one.block_table
                object.__setattr__(one, "block_table", two.block_table)
                object.__setattr__(two, "block_table", table)
        return step

    return plan


@mutant(MUTANTS, Scheduler, "fail", "C1", "E6", "C2")
def suspects_are_all_failed(original: Any) -> Any:
    def fail(self: Scheduler, step: Any) -> Any:
        culprits = original(self, step)
        if culprits:
            return culprits
        for row in step.rows:
            self._roster.suspects.pop(row.request.id, None)
        return tuple(row.request for row in step.rows)

    return fail


@mutant(MUTANTS, Scheduler, "expire", "C6")
def deadlines_are_forgotten(original: Any) -> Any:
    return lambda self, now: []


@mutant(MUTANTS, Stepper, "_abort", "E4")
def cancel_is_ignored(original: Any) -> Any:
    return lambda self, ticket: []


@mutant(MUTANTS, Stepper, "_handle", "E4")
def lost_session_goes_on(original: Any) -> Any:
    def handle(self: Stepper, command: Any, bundle: Any, now: float) -> None:
        if not isinstance(command, CancelAll) or command.sink is None:
            original(self, command, bundle, now)

    return handle


@mutant(MUTANTS, EngineCore, "submit", "C4")
def refused_request_is_run(original: Any) -> Any:
    def submit(self: EngineCore, proto: Any, sink: object) -> Any:
        ticket = original(self, proto, sink)
        if self.num_open > 3:
            raise OctavoError(QUEUE_FULL, retry_after_ms=1000, queued=4, limit=3, unit="requests")
        return ticket

    return submit


@mutant(MUTANTS, deltas, "new", "C3", "C1")
def position_forgets_a_token(original: Any) -> Any:
    def new(proto: Any, choice: int, *, position: int) -> Any:
        return original(proto, choice, position=position - (position == 17))

    return new
