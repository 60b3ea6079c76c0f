"""Bounds second attempts to a tenth of the requests, so that refusals cannot multiply load."""

from __future__ import annotations

SHARE = 0.1
MINIMUM = 10.0
MAXIMUM = 100.0


class RetryBudget:
    """What is left to spend. Attempts that follow the loss of an engine are bounded otherwise."""

    def __init__(self) -> None:
        self._balance = MINIMUM

    def request(self) -> None:
        """Notes a request that goes to an engine."""
        self._balance = min(MAXIMUM, self._balance + SHARE)

    def take(self) -> bool:
        """Takes one retry; False when there is none left."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True
