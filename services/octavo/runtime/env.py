"""Time, chance and identity as arguments, so that a simulation can own all three."""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Env(Protocol):
    """What a shell may know of the world besides its messages."""

    def now(self) -> float:
        """Monotonic seconds: the only clock of decisions."""
        ...

    def wall(self) -> float:
        """Unix seconds: for records and logs, never for decisions."""
        ...

    def rng(self, name: str) -> random.Random:
        """A random stream of its own for each name."""
        ...

    def new_id(self) -> str:
        """An unguessable identifier, 32 hexadecimal digits."""
        ...


class SystemEnv:
    """The real world."""

    def now(self) -> float:
        """Monotonic seconds of the kernel."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix seconds of the kernel."""
        return time.time()

    def rng(self, name: str) -> random.Random:  # noqa: ARG002
        """A stream seeded by the kernel, whatever its name."""
        return random.SystemRandom()

    def new_id(self) -> str:
        """A random UUID without dashes."""
        return uuid.uuid4().hex
