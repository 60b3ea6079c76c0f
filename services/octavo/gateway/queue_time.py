"""How long a request that came to an engine now would wait there for its first step. Pure.

Two things can be in its way, and the longer of the two waits is told:

    compute   the prompt tokens that are queued before it
    room      a place, or blocks: given back only when a request that has them ends

An engine that has room for all that wait and for one more keeps nobody waiting, however much it
runs. One that has not lets a request in whenever one ends, and of n that run, each for t seconds,
n / t end in a second. So what is known of the limit is only whether it is reached; t is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from octavo.gateway.routing import DEFAULT_DECODE_S_PER_STEP, DEFAULT_PREFILL_S_PER_TOKEN

DEFAULT_OUTPUT_TOKENS: Final = 256
"""Length that answers are taken to have as long as none has ended: a few paragraphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What runs and waits at one engine."""

    places: int = 0
    """Choices that it runs at once; zero: not known."""
    running: int = 0
    """Choices that have a place."""
    waiting: int = 0
    """Requests that have none, or of which the engine has not told yet."""
    queued_tokens: int = 0
    """Prompt tokens yet to be computed."""
    waiting_tokens: int = 0
    """Those of them that have no blocks yet: a prompt that has begun has blocks for all of it."""
    num_blocks: int = 0
    """Blocks that requests can have, apart from what may be pinned."""
    free_blocks: int = 0
    """Blocks that a request can be given."""
    block_tokens: int = 1
    prefill_s_per_token: float = 0.0
    """Zero: not measured yet."""
    decode_s_per_step: float = 0.0
    """Zero: not measured yet."""


def queue_s(queue: Queue, place_s: float | None) -> float:
    """Returns the seconds that a request which came now would wait.

    Args:
        queue: what is there before it.
        place_s: mean seconds for which a request has its place, times its choices; None: no
            request has ended yet.
    """
    per_token = queue.prefill_s_per_token or DEFAULT_PREFILL_S_PER_TOKEN
    if place_s is None:
        place_s = DEFAULT_OUTPUT_TOKENS * (queue.decode_s_per_step or DEFAULT_DECODE_S_PER_STEP)
    compute_s = queue.queued_tokens * per_token
    return max(compute_s, place_s * max(_ends_for_places(queue), _ends_for_blocks(queue)))


def share_in_use(queue: Queue) -> float:
    """Returns the share of an engine that is in use: of its places or blocks, whichever is more.

    Above one, requests wait.
    """
    of_places = (queue.running + queue.waiting) / (queue.places or math.inf)
    if not (queue.running and queue.num_blocks):
        return of_places
    return max(of_places, 1 - queue.free_blocks / queue.num_blocks)


def _ends_for_places(queue: Queue) -> float:
    """Returns how many of the requests at each place have to end before there is one for it."""
    total = queue.running + queue.waiting
    if not queue.places or total < queue.places:
        return 0.0
    return (total + 1 - queue.places) / queue.places


def _ends_for_blocks(queue: Queue) -> float:
    """Returns how many have to end, of each that runs, before the blocks are there for it.

    The first that lacks blocks keeps all behind it waiting, the places that are free
    notwithstanding. Without anybody that waits there is no lack.
    """
    needed = math.ceil(queue.waiting_tokens / queue.block_tokens)
    if not (queue.waiting and queue.running) or needed <= queue.free_blocks:
        return 0.0
    fitting = queue.waiting * queue.free_blocks // needed
    return (queue.waiting + 1 - fitting) / queue.running
