"""How long one transfer tries again: pauses that grow, with chance in them, up to a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from octavo.loader.source import TransientError
from octavo.v1.errors import SOURCE_UNREACHABLE, OctavoError

_FIRST_S: Final = 0.5
_LONGEST_S: Final = 30.0


class Patience:
    """The retries of one transfer.

    Args:
        place: the source's name.
        model: the model's URI.
        give_up_s: how long a transfer may go without a byte.
        clock: monotonic seconds.
        spread: draws a number between two, so that many loaders do not try again at once.
    """

    def __init__(
        self,
        place: str,
        model: str,
        give_up_s: float,
        *,
        clock: Callable[[], float],
        spread: Callable[[float, float], float],
    ) -> None:
        self._place = place
        self._model = model
        self._give_up_s = give_up_s
        self._clock = clock
        self._spread = spread
        self._last = clock()
        self._failures = 0

    def progressed(self) -> None:
        """Bytes came: whatever failed before is forgotten."""
        self._last = self._clock()
        self._failures = 0

    async def pause(self, error: TransientError) -> None:
        """Waits before the next try; raises OctavoError SOURCE_UNREACHABLE when it would be late.

        The last try is at the bound, not before it.
        """
        pause = min(_LONGEST_S, _FIRST_S * 2.0**self._failures) * self._spread(0.5, 1.0)
        self._failures = min(self._failures + 1, 10)
        left = self._last + self._give_up_s - self._clock()
        if left <= 0 or error.retry_after_s > left:
            asks = f", asks to wait {error.retry_after_s:.0f} s" if error.retry_after_s else ""
            reason = f"nothing came for {self._clock() - self._last:.0f} s: {error}{asks}"
            raise OctavoError(
                SOURCE_UNREACHABLE, place=self._place, model=self._model, reason=reason
            ) from error
        await asyncio.sleep(min(max(pause, error.retry_after_s), left))
