"""Keyed answers that have ended, by key: until their time is over or newer ones need the room."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from octavo.gateway.kept_answer import KeptAnswer

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of all together; without a store they are the only copies."""
MAX_ANSWERS: Final = 10_000


class EndedAnswers:
    """The ended answers of one gateway.

    Args:
        ttl_s: how long each is kept.
    """

    def __init__(self, *, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._answers: OrderedDict[str, KeptAnswer] = OrderedDict()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, key: str) -> KeptAnswer | None:
        """Returns the answer of a key."""
        return self._answers.get(key)

    def add(self, answer: KeptAnswer) -> None:
        """Takes an answer whose key has none here."""
        key = answer.entry.key
        self._answers[key] = answer
        self._num_bytes += answer.num_bytes
        self._timers[key] = asyncio.get_running_loop().call_later(self._ttl_s, self.remove, key)
        while self._num_bytes > MAX_BYTES or len(self) > MAX_ANSWERS:
            self.remove(next(iter(self._answers)))

    def remove(self, key: str) -> None:
        """Forgets the answer of a key."""
        self._num_bytes -= self._answers.pop(key).num_bytes
        self._timers.pop(key).cancel()

    def clear(self) -> None:
        """Forgets all."""
        for key in list(self._answers):
            self.remove(key)

    def check_integrity(self) -> None:
        """Asserts that what is counted is there."""
        assert self._num_bytes == sum(a.num_bytes for a in self._answers.values())
        assert set(self._timers) == set(self._answers)
        assert all(a.state != "running" for a in self._answers.values())
