"""Blocks that are kept for protected requests, so that none of them loses its own again.

A request that has been preempted so often that it is to be protected is admitted only when the
blocks of its worst case, prompt and max_tokens of each of its choices, can be set aside. They come
out of what others see as available; what it takes of them is no longer set aside. So it never lacks
a block, and need not be anybody's victim.

A group of choices whose worst case is larger than the pool has only its first one protected: the
others follow one by one, once they are on their own. Decides nothing else; knows no queues.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request, RequestId
from octavo.v1.validation import blocks_of_beams


class Reservations:
    """Which running requests are protected, and what is set aside for them.

    Args:
        cache: block tables; only read.
        max_preemptions: preemptions after which a request is protected; 0 protects nobody.
    """

    def __init__(self, cache: PrefixCache, max_preemptions: int) -> None:
        self._cache = cache
        self._max_preemptions = max_preemptions
        # With whether that holds for the siblings that it carries, too.
        self._protected: dict[RequestId, tuple[Request, bool]] = {}

    def __contains__(self, request: Request) -> bool:
        return request.id in self._protected

    def __iter__(self) -> Iterator[Request]:
        return (request for request, _ in self._protected.values())

    def is_due(self, request: Request) -> bool:
        """Tells whether the request is to run protected or not at all."""
        return 0 < self._max_preemptions <= request.num_preemptions

    def worst(self, request: Request) -> int:
        """Returns the blocks that the request and the siblings it carries can need at most.

        Siblings share the full blocks of the prompt; the partial one each has for itself, and so
        have beams. At most the pool: what needs more is given up when it has all of it. Beams that
        need more are not let in.
        """
        if request.beams is not None:
            return self.of_beams(request, request.slots, self._longest(request))
        own = self._cache.blocks_for(self._longest(request))
        return own + (self._of_siblings(request) if self._fits_as_group(request) else 0)

    def of_beams(self, request: Request, width: int, num_tokens: int) -> int:
        """Returns the blocks that so many beams of it take when each has so many tokens."""
        prompt, size = len(request.prompt_ids), self._cache.block_tokens
        return blocks_of_beams(width, num_tokens, prompt=prompt, block_tokens=size)

    def set_aside(self, but_for: Request | None = None) -> int:
        """Returns how many of the available blocks are not for others than protected requests.

        Args:
            but_for: a request whose own are not counted.
        """
        return sum(self._open(r, w) for r, w in self._protected.values() if r is not but_for)

    def protect(self, request: Request) -> None:
        """Sets the worst case aside for a request that has just got its table."""
        self._protected[request.id] = request, self._fits_as_group(request)

    def inherit(self, parent: Request, child: Request) -> None:
        """A sibling has been forked: it is protected if its group is as a whole."""
        if self._protected.get(parent.id, (parent, False))[1]:
            self._protected[child.id] = child, False

    def release(self, request: Request) -> None:
        """The request has no table any more."""
        self._protected.pop(request.id, None)

    def _fits_as_group(self, request: Request) -> bool:
        own = self._cache.blocks_for(self._longest(request))
        held = len(self._cache.held)
        return own + self._of_siblings(request) <= self._cache.num_allocatable - held

    def _open(self, request: Request, as_group: bool) -> int:
        """Returns the blocks that a protected request may still take."""
        if request.beams is not None:
            held = {block for holder in request.holders for block in self._cache.table(holder)}
            return max(0, self.worst(request) - len(held))
        own = self._cache.blocks_lacking(request, self._longest(request))
        return own + (self._of_siblings(request) if as_group else 0)

    def _longest(self, request: Request) -> int:
        """Returns the positions that the request has at most; its last token needs none."""
        at_most = len(request.prompt_ids) + max(request.stop.max_tokens - 1, 0)
        pool = (self._cache.num_allocatable - len(self._cache.held)) * self._cache.block_tokens
        return max(min(at_most, pool), request.num_tokens)

    def _of_siblings(self, request: Request) -> int:
        """Returns the blocks that unforked siblings need beside those they will share."""
        if not request.siblings:
            return 0
        shared, partial = divmod(len(request.prompt_ids), self._cache.block_tokens)
        each = [self._cache.blocks_for(self._longest(s)) - shared for s in request.siblings]
        # Once forked, the first one may have to copy the partial block, too.
        return sum(each) + (partial > 0)
