"""Which requests there are, which of them wait and which run, and the moves between.

A request runs as long as it has a block table. Decides nothing: the planner and the scheduler do.
"""

from __future__ import annotations

from octavo.engine.block_manager import check
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request, RequestId, Status
from octavo.engine.request_queue import RequestQueue
from octavo.v1.errors import OctavoError


class Roster:
    """Owns requests from `add` to `finish`; block tables are made and given up with the moves."""

    def __init__(self, cache: PrefixCache) -> None:
        self.running = RequestQueue()
        self.waiting = RequestQueue()
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
        """Choices that run or will be forked from one that runs."""
        return len(self.running) + sum(len(r.siblings) for r in self.running if r.siblings)

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

    def preempt(self, request: Request, now: float, *, swap: bool = False) -> None:
        """Takes all blocks of a running request and queues it again; its outputs are kept.

        Args:
            request: the victim.
            now: monotonic seconds.
            swap: whether it keeps what it has computed in the host tier, if there is room.
        """
        self.running.remove(request)
        if swap and self._cache.swap_out([request]):
            self.num_swaps += 1
            request.num_swaps += 1
        else:
            self._cache.release(request)
            request.num_computed = 0
        request.num_preemptions += 1
        request.status = Status.PREEMPTED
        self.num_preemptions += 1
        self._enqueue(request, now)

    def start_over(self, request: Request) -> None:
        """A waiting request has lost what it was swapped out with, and computes it again."""
        self.waiting_tokens += request.num_computed
        request.num_computed = 0

    def fork(self, request: Request) -> None:
        """Makes the siblings of a running request, whose prompt is computed, run on their own."""
        for sibling in request.siblings:
            del self._leaders[sibling.id]
            self._cache.fork(request, sibling)
            sibling.block_hashes = list(request.block_hashes)
            sibling.num_computed = request.num_computed
            sibling.num_cached = request.num_cached
            self._run(sibling)
        request.siblings = ()

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
            held = len(self._cache.table(request))
            enough = held >= self._cache.blocks_for(request.num_computed)
            check(enough, f"request {request.id} has computed more than its blocks hold")
        for request in self.waiting:
            waits = request.status in (Status.WAITING, Status.PREEMPTED)
            lacks = bool(request.num_computed) != self._cache.is_swapped(request)
            check(waits and not lacks, f"request {request.id} waits unknowingly")
        check(self._cache.num_tables == len(self.running), "a request that does not run has blocks")
        tokens = sum(r.num_tokens - r.num_computed for r in self.waiting)
        check(tokens == self.waiting_tokens, "the count of waiting tokens is wrong")
        waiting = {r.id for r in self.waiting}
        check(waiting == self._waiting_since.keys(), "waiting times of others are kept")
        check(self.suspects.keys() <= self.requests.keys(), "a finished request is a suspect")

    def _run(self, request: Request) -> None:
        request.status = Status.RUNNING
        self.running.add(request)

    def _enqueue(self, request: Request, now: float) -> None:
        self.waiting.add(request)
        self.waiting_tokens += request.num_tokens - request.num_computed
        self._waiting_since[request.id] = now

    def _dequeue(self, request: Request) -> None:
        self.waiting.remove(request)
        self.waiting_tokens -= request.num_tokens - request.num_computed
        del self._waiting_since[request.id]

    def _withdraw(self, request: Request) -> None:
        """Takes the request out of whichever queue it is in, and its blocks from it."""
        if request in self.running:
            self.running.remove(request)
            self._cache.release(request)
        elif request in self.waiting:
            self._dequeue(request)
            self._cache.discard(request)
        self.suspects.pop(request.id, None)
