"""The end of a drain: who outlasts it is told so, and whoever does not take that is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

LAST_WORDS_S: Final = 1.0
"""How long answers that outlasted the drain may take to send their error."""


async def see_out(ending: Awaitable[object], tell: Callable[[], object], *, after_s: float) -> bool:
    """Waits for answers to end; returns whether they did, and else has cancelled the wait.

    The last words are timed from when `tell` was called. Were both times counted from the start, a
    process that stood still meanwhile (SIGSTOP, a frozen cgroup) would find both over at once, and
    cut off whom it had just told.

    Args:
        ending: is done when they have ended.
        tell: has those that run send an error.
        after_s: seconds until then.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        tell()
        limit.reschedule(loop.time() + LAST_WORDS_S)

    timer = loop.call_later(after_s, end)
    try:
        async with asyncio.timeout(None) as limit:
            await ending
    except TimeoutError:
        return False
    finally:
        timer.cancel()
    return True
