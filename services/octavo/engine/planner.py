"""Plans one step: decodes, prompt chunks, admission, preemption.

There is no prefill or decode phase. Every request has computed so many of its tokens and catches
up within the step's token budget: running requests first, in the order of (priority, arrival), then
waiting ones in the order of the policy. Victims are taken from the other end of the first, so a
victim is never one that the same step has planned already; protected requests are none. Knows
nothing of how steps end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from octavo.engine.batch import Row, SampleSpec, StepInput
from octavo.engine.block_manager import BlockId, check
from octavo.engine.policy import Policy
from octavo.engine.preemption import Preemption
from octavo.engine.prefix_cache import Copy, PrefixCache
from octavo.engine.request import Request, Status
from octavo.engine.request_queue import order
from octavo.engine.roster import Roster
from octavo.v1.errors import NEVER_FITS, OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The scheduler's part of the engine's settings."""

    max_num_seqs: int
    """Choices that run at once; the unforked siblings of a running request count."""
    max_batched_tokens: int
    """Token budget of one step."""
    long_prefill_tokens: int
    """Largest chunk of one request while others run or wait."""
    watermark: float = 0.0
    """Share of the blocks kept free at admission while anything runs."""
    max_queued_requests: int = 1024
    """Choices waiting or running from which on new requests are refused."""
    max_queued_tokens: int = 1_000_000
    """Prompt tokens waiting beyond which new requests are refused."""
    scheduling_policy: Policy = "priority"
    """The order in which waiting requests are let in."""
    ageing_s_per_token: float = 0.01
    """Under "shortest": seconds of waiting that outweigh one token to compute."""
    max_preemptions: int = 3
    """Preemptions after which a request is let in only protected; 0 protects nobody."""


@dataclass(slots=True, kw_only=True)
class _Plan:
    """A step in the making."""

    now: float
    budget: int
    rows: list[Row] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    victims: list[Request] = field(default_factory=list)


class Planner:
    """Chooses rows and allocates their blocks.

    Args:
        config: limits.
        cache: block tables and prefix cache.
        roster: the requests; the planner moves them between waiting and running.
        preemption: chooses what becomes of a victim's blocks.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        roster: Roster,
        preemption: Preemption,
    ) -> None:
        self._config = config
        self._cache = cache
        self._roster = roster
        self._preemption = preemption
        self._was_alone = False
        """Whether the last step was a suspect's."""

    def plan(self, now: float, max_tokens: int | None = None) -> StepInput | None:
        """Returns the next step, of at most `max_tokens`; None when nothing can run."""
        most = self._config.max_batched_tokens
        bound = most if max_tokens is None else min(max_tokens, most)
        # Whatever the bound, each running request gets its next token.
        plan = _Plan(now=now, budget=max(bound, self._roster.num_rows))
        if self._roster.suspects:
            self._plan_apart(plan)
        if not plan.rows:
            self._make_way(plan)
            self._plan_running(plan)
            self._admit_waiting(plan)
        if not plan.rows:
            return None
        return StepInput(
            rows=tuple(plan.rows),
            offloads=tuple(self._cache.host.offloads()),
            restores=tuple(self._cache.host.restores()),
            copies=tuple(plan.copies),
        )

    def _plan_apart(self, plan: _Plan) -> None:
        """Plans a suspect alone; every other step is for those that ran before, so they go on."""
        if self._was_alone:
            self._plan_running(plan)
        self._was_alone = not plan.rows
        while self._roster.suspects and not plan.rows:
            self._plan_suspect(plan)

    def _plan_suspect(self, plan: _Plan) -> None:
        """Plans the smallest suspect alone, in the place of whatever else runs."""
        suspects = [self._roster.requests[i] for i in self._roster.suspects]
        suspect = min(suspects, key=lambda r: (r.num_tokens, order(r)))
        if suspect.status is Status.RUNNING:
            self._plan_rows(plan, suspect, self._remaining(plan, suspect))
            return
        while not self._start(plan, suspect):
            if not self._roster.running:
                self._reject(plan, suspect)
                return
            running = self._roster.running
            free = (r for r in reversed(running) if r not in self._roster.reservations)
            self._preempt(plan, next(free, running[-1]))
        self._plan_rows(plan, suspect, self._remaining(plan, suspect))

    def _make_way(self, plan: _Plan) -> None:
        """Preempts requests that the first waiting one strictly outranks, if that lets it in."""
        running, head = self._roster.running, self._next(plan)
        if not running or head is None or running[-1].priority <= head.priority:
            return
        protected = self._roster.reservations
        outranked = [r for r in running if r.priority > head.priority and r not in protected]
        # Blocks that victims share with others do not become free, so this may hope too much; then
        # they wait behind the head for those others to end.
        slots = sum(r.slots for r in outranked)
        blocks = sum(len(self._cache.table(h)) for r in outranked for h in r.holders)
        if self._has_slots(head, slots) and self._has_blocks(head, self._cache.match(head), blocks):
            while outranked and not self._fits(head):
                self._preempt(plan, outranked.pop())

    def _plan_running(self, plan: _Plan) -> None:
        """Gives each running request, in order, its share of the budget."""
        running = self._roster.running
        index = 0
        more = self._roster.num_rows - len(running)  # rows of beams behind, beyond one a request
        while index < len(running) and plan.budget > 0:
            request = running[index]
            if more:
                more -= len(request.holders) - 1
            # One token is left for each of those behind, so that no decode waits for a prefill.
            behind = len(running) - index - 1 + more
            if request.id not in self._roster.suspects:
                self._plan_rows(plan, request, self._chunk(plan, request, behind))
            index += 1

    def _admit_waiting(self, plan: _Plan) -> None:
        """Admits waiting requests in order until one does not fit.

        After a preemption only requests that outrank every victim are admitted: whoever comes
        behind a victim must not take its place.
        """
        while plan.budget > 0 and (head := self._next(plan)) is not None:
            if plan.victims and head.priority >= min(v.priority for v in plan.victims):
                return
            if self._start(plan, head):
                self._plan_rows(plan, head, self._chunk(plan, head, 0))
            elif self._roster.running:
                return
            else:
                self._reject(plan, head)

    def _next(self, plan: _Plan) -> Request | None:
        """Returns the first waiting request whose blocks are not just coming from disk."""
        waiting = self._roster.waiting
        if not waiting:
            return None
        head, awaits_disk = waiting.head, self._cache.awaits_disk
        if not awaits_disk(head, plan.now):
            return head
        # Who has no place asks later: what is read too early is evicted before its turn.
        for request in (r for r in waiting if r is not head):
            if not (self._has_slots(request) and awaits_disk(request, plan.now)):
                return request
        return None

    def _remaining(self, plan: _Plan, request: Request) -> int:
        """Returns the tokens that the request can compute in this step if it is alone."""
        if request.is_forked:
            return plan.budget
        remaining = min(request.num_tokens - request.num_computed, plan.budget)
        delivered = request.num_prompt_logprobs
        if self._lacks_prompt_logprobs(request) and request.num_computed < delivered:
            # Recomputed up to where the logprobs are known, so that a row wants all or none.
            return min(remaining, delivered - request.num_computed)
        return remaining

    def _chunk(self, plan: _Plan, request: Request, behind: int) -> int:
        """Returns the tokens that the request computes in this step besides others."""
        remaining = min(self._remaining(plan, request), max(1, plan.budget - behind))
        if len(self._roster.running) + len(self._roster.waiting) > 1:
            return min(remaining, self._config.long_prefill_tokens)
        return remaining

    def _plan_rows(self, plan: _Plan, request: Request, length: int) -> None:
        """Adds at most the next `length` tokens of a running request or of all its beams."""
        if request.beams is not None and request.beams.forked:
            self._plan_beams(plan, request, request.beams.writes(length))
        elif length:
            self._plan_row(plan, request, request.num_computed + length)

    def _plan_beams(
        self, plan: _Plan, carrier: Request, writes: Sequence[tuple[Request, int]]
    ) -> None:
        """Adds the rows of beams up to the given ends, if blocks can be found for all of them."""
        needed = partial(self._cache.blocks_needed_by_all, writes)
        if self._make_room(plan, carrier, needed):
            for beam, end in writes:
                self._add_row(plan, beam, end, (beam,) if end == beam.num_tokens else ())

    def _plan_row(self, plan: _Plan, request: Request, end: int) -> None:
        """Adds the tokens of a running request up to `end`, if blocks can be found for them."""
        if not self._make_room(plan, request, partial(self._cache.blocks_needed, request, end)):
            return
        choices: tuple[Request, ...] = ()
        if end == request.num_tokens and not (request.score_only or request.lost_beams):
            choices = (request,) if request.beams is not None else (request, *request.siblings)
        self._add_row(plan, request, end, choices)

    def _add_row(
        self, plan: _Plan, request: Request, end: int, choices: tuple[Request, ...]
    ) -> None:
        """Adds a row for which there are blocks."""
        start = request.num_computed
        copy = self._cache.extend(request, end)
        if copy is not None:
            plan.copies.append(copy)
        wants = self._lacks_prompt_logprobs(request) and end > request.num_prompt_logprobs
        row = Row(
            request=request,
            start=start,
            token_ids=tuple(request.tokens(start, end)),
            block_table=tuple(self._cache.table(request)),
            samples=tuple(SampleSpec(request=c) for c in choices),
            prompt_logprobs=request.prompt_logprobs if wants else None,
        )
        plan.rows.append(row)
        plan.budget -= end - start
        self._roster.waiting.charge(row)

    def _make_room(self, plan: _Plan, request: Request, needed: Callable[[], int]) -> bool:
        """Preempts from the end of the order until the blocks needed are available.

        Returns:
            False if the request itself had to go.
        """
        running, protected = self._roster.running, self._roster.reservations
        while needed() > self._available(request):
            if len(running) == 1:
                self._reject(plan, request)
                return False
            victim = next(r for r in reversed(running) if r is request or r not in protected)
            self._preempt(plan, victim)
            if victim is request:
                return False
        return True

    def _start(self, plan: _Plan, request: Request) -> bool:
        """Gives a waiting request its blocks and makes it run, if there is room for it."""
        if not self._has_slots(request):
            return False
        hits = self._cache.match(request)
        if not self._has_blocks(request, hits):
            return False
        if request.is_forked:
            self._cache.resume(request.holders)
            num_computed = request.num_computed
        else:
            num_computed = self._cache.admit(request, hits)
        if request.status is Status.WAITING:
            request.num_cached = min(num_computed, len(request.prompt_ids))
        for choice in (request, *request.siblings):
            if choice.first_scheduled is None:
                choice.first_scheduled = plan.now
        self._roster.start(request, num_computed)
        return True

    def _fits(self, request: Request) -> bool:
        return self._has_slots(request) and self._has_blocks(request, self._cache.match(request))

    def _has_slots(self, request: Request, freed: int = 0) -> bool:
        used = self._roster.slots_used - freed
        return used + request.slots <= self._config.max_num_seqs

    def _has_blocks(self, request: Request, hits: Sequence[BlockId], freed: int = 0) -> bool:
        """Tells whether all tokens of the request fit now, so that its prefill will not stall.

        One that is to be protected needs room for all that it may become; then it needs no
        watermark.
        """
        reservations = self._roster.reservations
        lacking, later = self._blocks_lacking(request, hits)
        if reservations.is_due(request):
            lacking += later
        elif self._roster.running:
            lacking += int(self._config.watermark * self._cache.num_allocatable)
        return lacking + reservations.set_aside() <= freed

    def _blocks_lacking(self, request: Request, hits: Sequence[BlockId]) -> tuple[int, int]:
        """Returns how many blocks are lacking to start a request, and how many it may add later.

        Negative: how many are over.
        """
        worst = self._roster.reservations.worst(request)
        if request.is_forked:
            later = worst - self._cache.host.num_swapped(beam.id for beam in request.holders)
            # What its beams write until the last token of each is computed, one block at least.
            size = self._cache.block_tokens
            writes = (
                self._cache.blocks_for(b.num_tokens) - b.num_computed // size
                for b in request.holders
            )
            soon = min(later, sum(writes))
            now = self._cache.blocks_to_resume(request.holders) + soon
            return now - self._cache.num_available, later - soon
        more = self._blocks_of_beams(request)
        have = self._cache.blocks_for(request.num_tokens) + more
        return self._cache.shortfall(request, hits) + more, max(0, worst - have)

    def _available(self, request: Request) -> int:
        """Returns the blocks that a running request can be given."""
        return self._cache.num_available - self._roster.reservations.set_aside(but_for=request)

    def _blocks_of_beams(self, request: Request) -> int:
        """Returns the blocks beyond its own that a waiting request's beams need to catch up."""
        if request.beams is None or not request.beams.live:
            return 0
        beams, own = request.beams.live, self._cache.blocks_for(request.num_tokens)
        return self._roster.reservations.of_beams(request, len(beams), beams[0].num_tokens) - own

    def _preempt(self, plan: _Plan, request: Request) -> None:
        has_row = any(row.request.owner is request for row in plan.rows)
        check(not has_row, f"request {request.id} is preempted in a step that computes it")
        holders, shared = request.holders, request.num_computed
        blocks = {block for holder in holders for block in self._cache.table(holder)}
        tokens = shared + sum(holder.num_computed - shared for holder in holders)
        swap = self._preemption.prefers_swap(num_blocks=len(blocks), num_tokens=tokens)
        self._roster.preempt(request, plan.now, swap=swap)
        plan.victims.append(request)

    def _reject(self, plan: _Plan, request: Request) -> None:
        """Gives up a request that does not even fit alone, rather than let it block the queue."""
        error = OctavoError(
            NEVER_FITS,
            param="prompt",
            needed=self._cache.blocks_for(request.num_tokens),
            total=self._cache.num_allocatable - len(self._cache.held),
        )
        self._roster.reject(request, error)
        plan.victims.clear()  # the pool is empty, so nothing speaks against their return

    @staticmethod
    def _lacks_prompt_logprobs(request: Request) -> bool:
        last = len(request.prompt_ids) - 1
        return request.prompt_logprobs is not None and request.num_prompt_logprobs < last
