"""Waiting requests in the order of what their fairness keys got: who was served least is next.

The virtual token counter (VTC) of Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024. Each key has a counter of its service: prompt tokens computed, and output tokens, which weigh
more. A key whose requests come after none of it waited is lifted to the least counter of those that
wait, so that nobody saves up by staying away. Then the service of two keys that both wait all the
time differs by at most

    2 max(INPUT_WEIGHT * longest prompt, OUTPUT_WEIGHT * tokens of all that runs at once)

whatever they ask for (theorem 4.4 there). Unlike there, a prompt is charged as its chunks are
computed: what was cached costs nothing, and neither does what a preempted request computes again.

Knows nothing of blocks, slots and time.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.engine.batch import Row
from octavo.engine.request import Request
from octavo.engine.request_queue import RequestQueue

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2
"""The weights of the paper: an output token takes a step, a prompt token a small part of one."""

MAX_ABSENT = 4096
"""Keys of which nothing waits and whose counters are kept; more than can run at once."""


class FairQueue:
    """Orders by priority, then by the counter of the key, then by arrival.

    Finding the head looks at each key once.
    """

    def __init__(self) -> None:
        self._queues: dict[str, RequestQueue] = {}  # by key; none is empty
        self._counters: dict[str, int] = {}
        self._last_key = ""
        """The key that was the last to leave when nothing was left."""
        self._charges: list[tuple[Request, int, int]] = []
        """(request, end of its prompt's paid part, amount) of the step in flight."""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Request]:
        """Yields all requests: those of the key that is next, in their order, then other keys'."""
        for queue in sorted(self._queues.values(), key=self._rank):
            yield from queue

    def __contains__(self, request: Request) -> bool:
        queue = self._queues.get(request.fairness_key)
        return queue is not None and request in queue

    @property
    def head(self) -> Request:
        """Who is first; there is one."""
        return min(self._queues.values(), key=self._rank).head

    @property
    def num_keys(self) -> int:
        """Keys whose counters are known."""
        return len(self._counters)

    def counter(self, key: str) -> int:
        """Returns the service that counts for a key."""
        return self._counters.get(key, 0)

    def add(self, request: Request) -> None:
        """Puts the request in its place; a key that was absent is lifted."""
        key = request.fairness_key
        if key not in self._queues:
            self._counters[key] = max(self.counter(key), self._least())
            self._queues[key] = RequestQueue()
        self._queues[key].add(request)

    def remove(self, request: Request) -> None:
        """Takes out the request, which is there."""
        key = request.fairness_key
        self._queues[key].remove(request)
        if not len(self._queues[key]):
            del self._queues[key]
            self._last_key = key
            self._forget()

    def charge(self, row: Row) -> None:
        """Counts a row that is planned, so that the next one of the same step is chosen rightly."""
        request = row.request
        end = min(row.start + len(row.token_ids), len(request.prompt_ids))
        inputs = max(0, end - max(row.start, request.num_charged))
        amount = INPUT_WEIGHT * inputs + OUTPUT_WEIGHT * len(row.samples)
        self._counters[request.fairness_key] = self.counter(request.fairness_key) + amount
        self._charges.append((request, end, amount))

    def settle(self) -> None:
        """The step succeeded: its charges stand."""
        for request, end, _ in self._charges:
            request.num_charged = max(request.num_charged, end)
        self._charges.clear()

    def revoke(self) -> None:
        """The step failed: nobody got anything."""
        for request, _, amount in self._charges:
            self._counters[request.fairness_key] = self.counter(request.fairness_key) - amount
        self._charges.clear()

    def _rank(self, queue: RequestQueue) -> tuple[int, int, float, int]:
        head = queue.head
        return head.priority, self._counters[head.fairness_key], head.arrival, head.id

    def _least(self) -> int:
        """Returns what a key that comes is lifted to."""
        if self._queues:
            return min(self._counters[key] for key in self._queues)
        return self.counter(self._last_key)

    def _forget(self) -> None:
        """Forgets the less served half of the absent keys when they are too many.

        Most of those are below what they would be lifted to, so nothing is lost with them.
        """
        if len(self._counters) - len(self._queues) <= MAX_ABSENT:
            return
        absent = [k for k in self._counters if k not in self._queues and k != self._last_key]
        absent.sort(key=self._counters.__getitem__)
        for key in absent[: len(absent) // 2]:
            del self._counters[key]
