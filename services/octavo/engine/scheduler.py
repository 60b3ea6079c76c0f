"""What runs next, and what a step's end means for its requests. Time is an argument.

The planner decides what is in a step; here requests come and go, and steps succeed or fail. Knows
nothing of tensors, text, transport and why requests end.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from octavo.engine.batch import StepInput
from octavo.engine.beam_search import Turn
from octavo.engine.block_manager import check
from octavo.engine.planner import Planner, SchedulerConfig
from octavo.engine.policy import check_priority, waiting_queue
from octavo.engine.preemption import Preemption
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request, RequestId
from octavo.engine.roster import Roster
from octavo.engine.stall import StallWatch
from octavo.v1.errors import INVALID_VALUE, QUEUE_FULL, QUEUE_STALLED, OctavoError

__all__ = ["Scheduler", "SchedulerConfig"]

_MIN_RETRY_MS = 1000
_MAX_RETRY_MS = 60_000


def _expiry(request: Request) -> float:
    """Returns when the request's time is over, should it not run before."""
    deadline = inf if request.deadline is None else request.deadline
    if request.first_scheduled is not None or request.queue_deadline is None:
        return deadline
    return min(deadline, request.queue_deadline)


class Scheduler:
    """Owns all requests between `add` and `finish`.

    One step is in flight at a time: `schedule`, then `commit` or `fail`, then the next.

    Args:
        config: limits.
        cache: block tables and prefix cache; nobody else changes them.
        preemption: chooses what becomes of a victim's blocks.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: PrefixCache,
        preemption: Preemption | None = None,
    ) -> None:
        self.config = config
        self.cache = cache
        waiting = waiting_queue(
            config.scheduling_policy, ageing_s_per_token=config.ageing_s_per_token
        )
        self._roster = Roster(cache, waiting, max_preemptions=config.max_preemptions)
        self._planner = Planner(config, cache, self._roster, preemption or Preemption())
        self._stall = StallWatch()
        self._in_flight: StepInput | None = None
        self._now = 0.0
        self._next_expiry = inf  # never later than the earliest deadline

    @property
    def num_running(self) -> int:
        """Choices or beams that hold blocks."""
        return self._roster.num_rows

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._roster.waiting)

    @property
    def num_preemptions(self) -> int:
        """How often a request has lost its blocks."""
        return self._roster.num_preemptions

    @property
    def num_swaps(self) -> int:
        """How many of these kept what was computed, in the host tier."""
        return self._roster.num_swaps

    @property
    def num_reserved_blocks(self) -> int:
        """Blocks that hold nothing in use, but are set aside for protected requests."""
        return self._roster.reservations.set_aside()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.cache.num_free

    @property
    def num_cached_free_blocks(self) -> int:
        """Blocks that nobody uses, but that are hittable."""
        return self.cache.num_cached_free

    @property
    def queued_prefill_tokens(self) -> int:
        """Tokens yet to be computed of requests that wait or whose prefill is under way."""
        holders = (holder for r in self._roster.running for holder in r.holders)
        remaining = (r.num_tokens - r.num_computed for r in holders)
        return self._roster.waiting_tokens + sum(n for n in remaining if n > 1)

    @property
    def waiting_tokens(self) -> int:
        """Those of them that have no blocks yet: of requests in the queue."""
        return self._roster.waiting_tokens

    def requests(self) -> list[Request]:
        """Returns all requests that have not been finished, unforked siblings included."""
        return list(self._roster.requests.values())

    def figures(self, head: Request) -> dict[str, int]:
        """Returns the numbers of a queue that stood still, for whoever has to find out why."""
        return {
            "waiting": self.num_waiting,
            "running": self.num_running,
            "free_blocks": self.num_free_blocks,
            "cached_free_blocks": self.num_cached_free_blocks,
            "reserved_blocks": self.num_reserved_blocks,
            "head": head.id,
            "head_tokens": head.num_tokens,
            "head_choices": head.slots,
            "head_preemptions": head.num_preemptions,
        }

    def has_work(self) -> bool:
        """Tells whether a step could do anything."""
        return bool(self._roster.running or self._roster.waiting or self._roster.rejected)

    def oldest_runnable(self, now: float) -> float:
        """Returns the seconds since the longest-waiting request was queued; 0 if none waits."""
        return self._roster.longest_wait(now)

    def add(
        self,
        group: Sequence[Request],
        now: float,
        *,
        prefill_us_per_token: float = 0.0,
        admitted: bool = False,
        suspect: bool = False,
    ) -> None:
        """Queues requests that belong together, each with its siblings: all of them or none.

        Args:
            group: the requests.
            now: monotonic seconds.
            prefill_us_per_token: what a queued token takes, to tell a caller when to try again.
            admitted: another engine has let them in, so the queue takes them, full or not.
            suspect: an engine died while it ran them, so they run alone up to their next token:
                that shows at once whether they are the cause, and costs the others least.

        Raises:
            OctavoError: the queue is full, the group has more choices than can run at once, or it
                has a priority and the policy knows none.
        """
        for request in group:
            check_priority(self.config.scheduling_policy, request.priority)
        choices = [choice for request in group for choice in (request, *request.siblings)]
        if sum(request.slots for request in group) > self.config.max_num_seqs:
            reason = f"must be at most {self.config.max_num_seqs}"
            raise OctavoError(INVALID_VALUE, param="n", reason=reason)
        if not admitted:
            self._check_queue(sum(request.num_tokens for request in group), prefill_us_per_token)
        for request in group:
            self.cache.extend_hashes(request)
            self._roster.add(request, now)
            if suspect:
                self._roster.suspects[request.id] = request.num_tokens
        self._next_expiry = min(self._next_expiry, *map(_expiry, choices))

    def expire(self, now: float) -> list[Request]:
        """Returns requests past their deadline or, never having run, their queue deadline.

        Unforked siblings are not listed: they end with the request that carries them. The caller
        finishes what is listed.
        """
        if now < self._next_expiry:
            return []
        requests = self._roster.requests.values()
        self._next_expiry = min(map(_expiry, requests), default=inf)
        return [r for r in requests if _expiry(r) <= now and not self._roster.is_unforked(r)]

    def schedule(self, now: float, max_tokens: int | None = None) -> StepInput | None:
        """Plans the next step; None when nothing can run. `drain_rejected` comes after it.

        Args:
            now: monotonic seconds.
            max_tokens: bound of this step's tokens, below the configured one.
        """
        check(self._in_flight is None, "a step is in flight")
        self._now = now
        self._in_flight = self._planner.plan(now, max_tokens)
        planned, host = self._in_flight is not None, self.cache.host
        # Asked in idle turns only: there can be thousands that wait.
        idle = not (planned or self._roster.running)
        if self._stall.is_over(
            waiting=self.num_waiting,
            running=self.num_running,
            planned=planned,
            loading=idle and any(host.is_loading(r.id, now) for r in self._roster.waiting),
        ):
            error = OctavoError(QUEUE_STALLED, turns=self._stall.limit)
            self._roster.reject(self._roster.waiting.head, error)
        return self._in_flight

    def drain_rejected(self) -> list[tuple[Request, OctavoError]]:
        """Returns requests that turned out never to fit, with the reason.

        They hold nothing and are in no queue; the caller finishes them now, and with each the
        siblings that it carries.
        """
        return list(self._roster.rejected.values())

    def commit(self, step: StepInput, *, poisoned: frozenset[RequestId] = frozenset()) -> None:
        """The step succeeded: publishes its hashes, and forks siblings that got a sample.

        Called before the sampled tokens are appended. `poisoned` names choices whose logits were
        not finite: nothing they wrote or read stays hittable, and the caller finishes them.
        """
        self._end_step(step)
        self._roster.waiting.settle()
        self.cache.commit(
            row.request
            for row in step.rows
            if any(spec.request.id in poisoned for spec in row.samples)
        )
        suspects = self._roster.suspects
        for row in step.rows:
            request = row.request
            request.num_computed = row.start + len(row.token_ids)
            if request.id in poisoned:
                request.num_written = 0
            elif self.cache.enabled:
                request.count_written(self.cache.block_tokens)
            if row.prompt_logprobs is not None:
                last = len(request.prompt_ids) - 1
                request.num_prompt_logprobs = min(request.num_computed, last)
            if request.num_computed >= suspects.get(request.owner.id, inf):
                del suspects[request.owner.id]
            if len(row.samples) > 1:
                self._roster.fork(request)
            elif request.lost_beams and request.num_computed == request.num_tokens:
                self._roster.fork_beams(request)

    def fail(self, step: StepInput) -> tuple[Request, ...]:
        """The step raised: nothing of it is published, and its requests start over.

        They become suspects: until each has got, alone, as far as this step was to take it, nothing
        else runs; the smallest goes first.

        Returns:
            The request to be failed, if it was alone in the step.
        """
        self._end_step(step)
        self._roster.waiting.revoke()
        self._roster.start_over(self.cache.revoke())
        reached = {row.request.owner: row.start + len(row.token_ids) for row in step.rows}
        for request, position in reached.items():
            self._roster.preempt(request, self._now)
            self._roster.suspects[request.id] = position
        if len(reached) > 1:
            return ()
        (culprit,) = reached
        del self._roster.suspects[culprit.id]
        return (culprit,)

    def advance_beams(self, carrier: Request, turn: Turn) -> None:
        """Makes the next beams of a request, after the commit of the step with their candidates."""
        check(self._in_flight is None, "a step is in flight")
        self._roster.advance_beams(carrier, turn)

    def finish(self, request: Request) -> None:
        """Forgets a request in whatever status; its full blocks stay hittable.

        Siblings that the request carries end with it. Not called for a request with a row in the
        step in flight; one that is finished already is left alone.
        """
        rows = self._in_flight.rows if self._in_flight is not None else ()
        busy = any(row.request.owner is request for row in rows)
        check(not busy, f"request {request.id} is finished while its step is in flight")
        self._roster.finish(request)

    def check_integrity(self) -> None:
        """Raises IntegrityError unless requests, tables, blocks and hashes agree."""
        self._roster.check_integrity()
        check(self._roster.slots_used <= self.config.max_num_seqs, "more choices run than may")

    def _check_queue(self, num_tokens: int, prefill_us_per_token: float) -> None:
        """Raises QUEUE_FULL; a single request is never too large for an empty queue."""
        count, waiting = len(self._roster.requests), self.queued_prefill_tokens
        if count >= self.config.max_queued_requests:
            queued, limit, unit = count, self.config.max_queued_requests, "requests"
        elif waiting and waiting + num_tokens > self.config.max_queued_tokens:
            queued, limit, unit = waiting, self.config.max_queued_tokens, "tokens"
        else:
            return
        wait_ms = round(waiting * prefill_us_per_token / 1e3)
        retry_ms = min(max(wait_ms, _MIN_RETRY_MS), _MAX_RETRY_MS)
        raise OctavoError(
            QUEUE_FULL, retry_after_ms=retry_ms, queued=queued, limit=limit, unit=unit
        )

    def _end_step(self, step: StepInput) -> None:
        check(step is self._in_flight, "the step is not the one in flight")
        self._in_flight = None
