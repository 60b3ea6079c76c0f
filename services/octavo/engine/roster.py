"""Which requests there are, which of them wait and which run, and the moves between.

A request runs as long as it has a block table. Decides nothing: the planner and the scheduler do.
"""

from __future__ import annotations

from collections.abc import Collection

from octavo.engine.beam_search import Turn
from octavo.engine.block_manager import IntegrityError, check
from octavo.engine.policy import FreeQueue, WaitingQueue
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Beams, Request, RequestId, Status
from octavo.engine.request_queue import RequestQueue
from octavo.engine.reservations import Reservations
from octavo.v1.errors import OctavoError


class Roster:
    """Owns requests from `add` to `finish`; block tables are made and given up with the moves.

    Args:
        cache: block tables.
        waiting: the queue of those that wait; empty.
        max_preemptions: preemptions after which a request runs protected only; 0 protects nobody.
    """

    def __init__(
        self,
        cache: PrefixCache,
        waiting: WaitingQueue | None = None,
        *,
        max_preemptions: int = 0,
    ) -> None:
        self.running = RequestQueue()
        self.waiting: WaitingQueue = FreeQueue() if waiting is None else waiting
        self.reservations = Reservations(cache, max_preemptions)
        self.requests: dict[RequestId, Request] = {}
        """All that have not been finished, unforked siblings included."""
        self.suspects: dict[RequestId, int] = {}
        """Requests of failed steps, or under which another engine died, with the position up to
        which each has to get alone."""
        self.rejected: dict[RequestId, tuple[Request, OctavoError]] = {}
        """Requests that can never run, until somebody takes notice."""
        self.waiting_tokens = 0
        """Tokens yet to be computed of all that wait."""
        self.num_preemptions = 0
        self.num_swaps = 0
        """Preemptions that kept what was computed, in the host tier."""
        self._cache = cache
        self._leaders: dict[RequestId, Request] = {}  # of unforked siblings
        # Oldest first, since time does not run backwards.
        self._waiting_since: dict[RequestId, float] = {}

    @property
    def slots_used(self) -> int:
        """Choices or beams that run or will be forked from one that runs."""
        carriers = (r for r in self.running if r.siblings or r.beams is not None)
        return len(self.running) + sum(r.slots - 1 for r in carriers)

    @property
    def num_rows(self) -> int:
        """Rows of a step in which all that run get their next token."""
        carriers = (r for r in self.running if r.beams is not None)
        return len(self.running) + sum(len(r.holders) - 1 for r in carriers)

    def is_unforked(self, request: Request) -> bool:
        """Tells whether the request is a sibling that its leader still carries."""
        return request.id in self._leaders

    def longest_wait(self, now: float) -> float:
        """Returns the seconds since the longest-waiting request was queued; 0 if none waits."""
        return now - next(iter(self._waiting_since.values()), now)

    def add(self, request: Request, now: float) -> None:
        """Queues a new request; its siblings exist, but are in no queue until they are forked."""
        check(request.id not in self.requests, f"request {request.id} is known already")
        self.requests[request.id] = request
        for sibling in request.siblings:
            self.requests[sibling.id] = sibling
            self._leaders[sibling.id] = request
        self._enqueue(request, now)

    def start(self, request: Request, num_computed: int) -> None:
        """Moves a waiting request, which has got its block table, to those that run."""
        self._dequeue(request)
        request.num_computed = num_computed
        self._run(request)
        if self.reservations.is_due(request):
            self.reservations.protect(request)

    def preempt(self, request: Request, now: float, *, swap: bool = False) -> None:
        """Takes all blocks of a running request and queues it again; its outputs are kept.

        Args:
            request: the victim.
            now: monotonic seconds.
            swap: whether it keeps what it has computed in the host tier, if there is room.
        """
        if swap and self._cache.swap_out(request.holders):
            self._leave(request)
            self.num_swaps += 1
            request.num_swaps += 1
        else:
            self._stop(request)
            self._forget_computed(request)
        request.num_preemptions += 1
        request.status = Status.PREEMPTED
        self.num_preemptions += 1
        self._enqueue(request, now)

    def start_over(self, lost: Collection[RequestId]) -> None:
        """Has waiting requests whose swapped content, or that of their beams, is lost begin again.

        Args:
            lost: the ids of those that had the content.
        """
        if not lost:
            return
        for request in self.waiting:
            if any(holder.id in lost for holder in request.holders):
                self.waiting_tokens -= request.backlog
                self._forget_computed(request)
                self.waiting_tokens += request.backlog

    def fork(self, request: Request) -> None:
        """Makes the siblings of a running request, whose prompt is computed, run on their own."""
        for sibling in request.siblings:
            del self._leaders[sibling.id]
            self._cache.fork(request, sibling)
            sibling.block_hashes = list(request.block_hashes)
            sibling.num_computed = request.num_computed
            sibling.num_cached = request.num_cached
            sibling.num_charged = request.num_charged
            self._run(sibling)
            self.reservations.inherit(request, sibling)
        request.siblings = ()

    def fork_beams(self, carrier: Request) -> None:
        """Gives all beams of a running request, whose prompt is computed, its blocks."""
        beams = _beams(carrier)
        for beam in beams.live:
            self._cache.fork(carrier, beam)
            beam.num_computed = carrier.num_computed
        self._cache.release(carrier)
        beams.forked = True

    def advance_beams(self, carrier: Request, turn: Turn) -> None:
        """Makes the next beams out of the present ones, or the first out of the prompt.

        A beam that is continued once or more goes on itself as the first of its continuations; the
        others get its blocks by reference, and beams that nobody continues lose theirs.
        """
        beams = _beams(carrier)
        if not beams.forked:
            beams.live = [beams.idle.pop() for _ in turn.tokens]
            for beam, token in zip(beams.live, turn.tokens, strict=True):
                beam.output_ids.append(token)
                beam.block_hashes = list(carrier.block_hashes)
            self.fork_beams(carrier)
            return
        parents = [beams.live[i] for i in turn.parents]
        continued = set(parents)
        losers = [beam for beam in beams.live if beam not in continued]
        beams.live = [
            parent if parent not in parents[:i] else self._fork_beam(parent, losers, beams.idle)
            for i, parent in enumerate(parents)
        ]
        for beam, token in zip(beams.live, turn.tokens, strict=True):
            beam.output_ids.append(token)
        for beam in losers:
            self._cache.release(beam)
            beams.idle.append(beam)

    def reject(self, request: Request, error: OctavoError) -> None:
        """Takes a request that can never run out of its queue, for the caller to finish."""
        self._withdraw(request)
        self.rejected[request.id] = (request, error)

    def finish(self, request: Request) -> None:
        """Forgets a request in whatever status, and with it the siblings that it carries."""
        if self.requests.pop(request.id, None) is None:
            return
        leader = self._leaders.pop(request.id, None)
        if leader is not None:
            leader.siblings = tuple(s for s in leader.siblings if s is not request)
        else:
            self._withdraw(request)
        self.rejected.pop(request.id, None)
        request.status = Status.FINISHED
        for sibling in request.siblings:
            self.finish(sibling)

    def check_integrity(self) -> None:
        """Raises IntegrityError unless every request is in the one place that fits its status."""
        self._cache.check_integrity()
        places = [r.id for r in (*self.running, *self.waiting)]
        places += [*self._leaders, *self.rejected]
        check(sorted(places) == sorted(self.requests), "a request is in no place, or in two")
        for request in self.running:
            check(request.status is Status.RUNNING, f"request {request.id} runs unknowingly")
            known = 0 <= request.num_computed <= request.num_tokens
            check(known, f"request {request.id} has computed more tokens than it has")
            for holder in request.holders:
                held = len(self._cache.table(holder))
                enough = held >= self._cache.blocks_for(holder.num_computed)
                check(enough, f"request {holder.id} has computed more than its blocks hold")
        for request in self.waiting:
            waits = request.status in (Status.WAITING, Status.PREEMPTED)
            lacks = bool(request.num_computed) != self._cache.is_swapped(request.holders[0])
            check(waits and not lacks, f"request {request.id} waits unknowingly")
        check(self._cache.num_tables == self.num_rows, "a request that does not run has blocks")
        running = {r.id for r in self.running}
        protected = {r.id for r in self.reservations}
        check(protected <= running, "blocks are set aside for a request that does not run")
        tokens = sum(r.backlog for r in self.waiting)
        check(tokens == self.waiting_tokens, "the count of waiting tokens is wrong")
        waiting = {r.id for r in self.waiting}
        check(waiting == self._waiting_since.keys(), "waiting times of others are kept")
        check(self.suspects.keys() <= self.requests.keys(), "a finished request is a suspect")

    def _fork_beam(self, parent: Request, losers: list[Request], idle: list[Request]) -> Request:
        """Returns a beam, of those without a future, with the blocks and the output of `parent`."""
        if losers:
            beam = losers.pop()
            self._cache.fork_over(parent, beam)
        else:
            beam = idle.pop()
            self._cache.fork(parent, beam)
        beam.num_computed = parent.num_computed
        beam.output_ids = list(parent.output_ids)
        beam.block_hashes = list(parent.block_hashes)
        return beam

    def _run(self, request: Request) -> None:
        request.status = Status.RUNNING
        self.running.add(request)

    def _stop(self, request: Request) -> None:
        """Takes the blocks of a request that runs, or those of its beams."""
        for holder in request.holders:
            self._cache.release(holder)
        self._leave(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.reservations.release(request)

    def _forget_computed(self, request: Request) -> None:
        """Has a request without blocks compute all of its tokens when it runs again."""
        for holder in request.holders:
            self._cache.discard(holder)
        request.num_computed = 0
        if request.beams is not None:
            request.beams.forked = False

    def _enqueue(self, request: Request, now: float) -> None:
        self.waiting.add(request)
        self.waiting_tokens += request.backlog
        self._waiting_since[request.id] = now

    def _dequeue(self, request: Request) -> None:
        self.waiting.remove(request)
        self.waiting_tokens -= request.backlog
        del self._waiting_since[request.id]

    def _withdraw(self, request: Request) -> None:
        """Takes the request out of whichever queue it is in, and its blocks from it."""
        if request in self.running:
            self._stop(request)
        elif request in self.waiting:
            self._dequeue(request)
            self._forget_computed(request)
        self.suspects.pop(request.id, None)


def _beams(carrier: Request) -> Beams:
    if carrier.beams is None:
        raise IntegrityError(f"request {carrier.id} has no beams")
    return carrier.beams
