"""Chance, ids and wall time of one simulated process, all from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable

WALL_OFFSET_S = 1.7e9


def stream(seed: int, name: str) -> random.Random:
    """A stream of its own for each name, so that taking from one never moves another."""
    return random.Random(f"{seed}:{name}")


class SimEnv:
    """`Env` of one process; its names are prefixed, so that no two processes share a stream."""

    def __init__(self, seed: int, process: str, clock: Callable[[], float]) -> None:
        self.wall_offset_s = WALL_OFFSET_S
        self._seed = seed
        self._process = process
        self._clock = clock
        self._ids = self.rng("ids")

    def now(self) -> float:
        return self._clock()

    def wall(self) -> float:
        return self._clock() + self.wall_offset_s

    def rng(self, name: str) -> random.Random:
        return stream(self._seed, f"{self._process}:{name}")

    def new_id(self) -> str:
        return f"{self._ids.getrandbits(128):032x}"
