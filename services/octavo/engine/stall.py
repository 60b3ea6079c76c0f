"""Notices a queue that stands still: requests wait, none runs, and turn after turn starts none.

The planner lets in or gives up the first request whenever nothing runs, so this never happens. It
is here because a queue that stands still for ever is the worst that a scheduler can do, and because
no test tries every order of events. Knows only counts.
"""

from __future__ import annotations

LIMIT_TURNS = 5
"""Turns in a row; one without work comes about once a second."""


class StallWatch:
    """Counts the turns in which nothing moved.

    Args:
        limit: turns in a row after which something has to be done.
    """

    def __init__(self, limit: int = LIMIT_TURNS) -> None:
        self.limit = limit
        self._turns = 0

    def is_over(self, *, waiting: int, running: int, planned: bool, loading: bool) -> bool:
        """Takes note of a turn; True when it was one too many, and counting starts anew.

        Args:
            waiting: requests in the queue after the turn was planned.
            running: requests that hold blocks.
            planned: the turn has a step.
            loading: something is on its way that a waiting request needs.
        """
        stands = waiting > 0 and running == 0 and not planned and not loading
        self._turns = self._turns + 1 if stands else 0
        if self._turns < self.limit:
            return False
        self._turns = 0
        return True
