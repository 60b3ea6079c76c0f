"""Where a request goes: the engine that has the first token soonest, priced in seconds. Pure.

    price = backlog + decode drag + weight * uncached prefill

backlog is the prefill that waits before this request, decode drag what the running choices cost
each of its steps, uncached prefill the prompt tokens that the engine does not hold. Knows neither
engines nor time: views in, route out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PREFILL_WEIGHT = 1.25
"""A second of prefill also delays whoever comes behind it, so it counts for more than a second of
waiting. Hence equal prompts of one burst stay together on the engine that computes them."""

DEFAULT_PREFILL_S_PER_TOKEN = 0.5e-3
DEFAULT_DECODE_S_PER_STEP = 10e-3
"""Taken until an engine has measured its own: SmolLM2-135M on two cores, rounded up, because
over-estimating work is harmless and under-estimating is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """What the router sees of one engine that may take the request."""

    name: str
    hit_blocks: int = 0
    """Leading blocks of the prompt that it holds or is about to."""
    queued_tokens: int = 0
    """Prompt tokens that wait there, the gateway's own unreported ones included."""
    running: int = 0
    """Choices that share its steps."""
    in_flight: int = 0
    """Requests of this gateway that are open there."""
    prefill_s_per_token: float = 0.0
    """Zero: not measured yet."""
    decode_s_per_step: float = 0.0
    """Zero: not measured yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A decision, with what it was made from."""

    engine: str
    hit_tokens: int
    """Prompt tokens expected to be skipped."""
    prompt_tokens: int
    seconds: float
    """The price."""
    runner_up: str = ""
    """The next best engine; empty when there was no choice."""
    runner_up_seconds: float | None = None

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens expected to be computed."""
        return self.prompt_tokens - self.hit_tokens


def hit_tokens(hit_blocks: int, prompt_tokens: int, block_tokens: int) -> int:
    """Returns the tokens that a hit saves: whole blocks, and never the prompt's last token."""
    return min(hit_blocks, (prompt_tokens - 1) // block_tokens) * block_tokens


def price(view: EngineView, uncached_tokens: int) -> float:
    """Returns the seconds that sending the request to this engine costs."""
    per_token = view.prefill_s_per_token or DEFAULT_PREFILL_S_PER_TOKEN
    per_step = view.decode_s_per_step or DEFAULT_DECODE_S_PER_STEP
    backlog = view.queued_tokens * per_token
    return backlog + view.running * per_step + PREFILL_WEIGHT * uncached_tokens * per_token


def choose(
    views: Sequence[EngineView], *, prompt_tokens: int, block_tokens: int, turn: int
) -> Route:
    """Returns the cheapest engine; equal prices go to the fewest in flight, then in rotation.

    Args:
        views: the candidates, at least one.
        prompt_tokens: the prompt's length.
        block_tokens: tokens of a hash block.
        turn: any number that grows by one a request.
    """
    ranked = []
    for i, view in enumerate(views):
        hit = hit_tokens(view.hit_blocks, prompt_tokens, block_tokens)
        seconds = price(view, prompt_tokens - hit)
        ranked.append((seconds, view.in_flight, (i - turn) % len(views), view.name, hit))
    ranked.sort()
    seconds, _, _, name, hit = ranked[0]
    second = ranked[1] if len(ranked) > 1 else None
    return Route(
        engine=name,
        hit_tokens=hit,
        prompt_tokens=prompt_tokens,
        seconds=seconds,
        runner_up=second[3] if second else "",
        runner_up_seconds=second[0] if second else None,
    )
