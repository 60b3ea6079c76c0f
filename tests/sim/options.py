"""What is drawn about the run itself: how many parts, how large, which requests, which faults."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.env import stream

KINDS = (
    "kill",
    "restart",
    "pause",
    "slow",
    "step_error",
    "stuck",
    "drain",
    "cut",
    "clog",
    "events",
    "gateway_kill",
    "gateway_drain",
    "redis",
    "wall_jump",
    "failpoint",
)
"""Kinds of faults; each is on with p = 1/2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One draw."""

    gateways: int
    engines: int
    requests: int
    bursts: tuple[float, ...]
    """Moments at which requests come, and faults soon after; empty: they come evenly."""
    fault_s: float
    """How long faults and new requests may come."""
    num_blocks: int
    max_num_seqs: int
    max_batched_tokens: int
    max_queued_requests: int
    step_s: float
    token_s: float
    watchdog_s: float
    restart_s: float
    """How long a dead process stays dead unless a fault says for ever."""
    min_delay_s: float
    max_delay_s: float
    stream_share: float
    odd_share: float
    """How likely each unusual parameter of a request is."""
    leave_share: float
    stall_share: float
    retry_share: float
    key_share: float
    poisons: tuple[str, ...]
    kinds: tuple[str, ...]
    """Faults that exist in this run; empty: a quiet one."""
    num_faults: int
    redis_heals: bool
    small_buffers: bool
    core: tuple[int, int]
    """Gateway and engine that are healed."""

    @property
    def max_model_len(self) -> int:
        """Longest prompt and answer together."""
        return min(512, self.num_blocks * 16)


def draw_options(seed: int) -> Options:
    """Draws the options of a seed."""
    rng = stream(seed, "options")
    gateways, engines = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 2, 3, 3, 4))
    fault_s = rng.choice((2.0, 4.0, 8.0))
    quiet = rng.random() < 0.1
    kinds = () if quiet else tuple(k for k in KINDS if rng.random() < 0.5)
    poisons = [p for p in ("raise", "kill", "nan") if rng.random() < 0.12]
    return Options(
        gateways=gateways,
        engines=engines,
        requests=rng.randint(6, 24),
        bursts=tuple(rng.uniform(0.1, fault_s / 2) for _ in range(rng.choice((0, 1, 2)))),
        fault_s=fault_s,
        num_blocks=rng.choice((20, 28, 40, 96)),
        max_num_seqs=rng.choice((3, 6, 12)),
        max_batched_tokens=rng.choice((32, 64, 256)),
        max_queued_requests=rng.choice((4, 1000, 1000)),
        step_s=rng.choice((0.01, 0.03, 0.06)),
        token_s=rng.choice((0.0, 0.0002, 0.001)),
        watchdog_s=rng.choice((4.0, 8.0)),
        restart_s=rng.choice((0.2, 1.0, 4.0)),
        min_delay_s=0.0002,
        max_delay_s=rng.choice((0.001, 0.004)),  # Redis has 50 ms for all
        stream_share=rng.choice((0.3, 0.7, 1.0)),
        odd_share=rng.choice((0.0, 0.2, 0.5)),
        leave_share=rng.choice((0.0, 0.1, 0.4)),
        stall_share=rng.choice((0.0, 0.1, 0.3)),
        retry_share=rng.choice((0.0, 0.5)),
        key_share=rng.choice((0.0, 0.0, 0.5)),
        poisons=() if quiet else tuple(poisons),
        kinds=kinds,
        num_faults=rng.randint(2, 14),
        redis_heals=rng.random() < 0.5,
        small_buffers=rng.random() < 0.5,
        core=(rng.randrange(gateways), rng.randrange(engines)),
    )
