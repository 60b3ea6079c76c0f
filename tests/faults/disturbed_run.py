"""The oracle: answers of a run in which something broke, beside those of an undisturbed one."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tests.faults.deployment import Deployment
from tests.faults.figures import milliseconds
from tests.faults.stream_client import Answer
from tests.faults.workload import Body


@dataclass(frozen=True, slots=True, kw_only=True)
class DisturbedRun:
    """What came back."""

    expected: Sequence[object]
    answers: Sequence[Answer]
    broken_at: float

    @property
    def wrong(self) -> list[str]:
        """What differs from the undisturbed run, a line for each answer that does."""
        return [
            f"{number}: {difference}"
            for number, (answer, expected) in enumerate(
                zip(self.answers, self.expected, strict=True)
            )
            if (difference := _difference(answer, expected))
        ]

    def on(self, engine: str) -> list[Answer]:
        """Returns the answers that began on an engine."""
        return [a for a in self.answers if a.headers.get("X-Octavo-Route", "").startswith(engine)]

    def pauses_s(self, engine: str) -> list[float]:
        """Returns the longest pause after the fault of each answer that an engine had begun."""
        pauses = []
        for answer in self.on(engine):
            times = answer.token_times
            if times and times[0] < self.broken_at < times[-1]:
                pairs = itertools.pairwise(times)
                pauses.append(max(b - a for a, b in pairs if b > self.broken_at))
        return pauses

    def figures(self, engine: str) -> dict[str, object]:
        """Returns counts and pauses."""
        pauses = self.pauses_s(engine)
        return {
            "streams": len(self.answers),
            "equal": len(self.answers) - len(self.wrong),
            "interrupted": len(pauses),
            "pause_ms": milliseconds(pauses),
        }


def _difference(answer: Answer, expected: object) -> str:
    if not answer.ok:
        return f"{answer.status} {answer.error or 'broken off'} after {len(answer.token_times)}"
    if answer.content == expected:
        return ""
    return f"another answer: {answer.content!r:.300} instead of {expected!r:.300}"


async def undisturbed(deployment: Deployment, bodies: Sequence[Body]) -> list[object]:
    """Returns what the answers must be."""
    answers = await deployment.ask_all(bodies)
    assert all(answer.ok for answer in answers), [a.error for a in answers]
    return [answer.content for answer in answers]


async def disturbed(
    deployment: Deployment,
    bodies: Sequence[Body],
    expected: Sequence[object],
    fault: Callable[[], Awaitable[None]],
    *,
    after_s: float,
    begun: bool = True,
) -> DisturbedRun:
    """Sends all requests, breaks something after a while, and reads all answers.

    Args:
        deployment: who is asked.
        bodies: what is asked at once.
        expected: from `undisturbed`.
        fault: breaks it.
        after_s: how long after every stream has its first token, or after the start.
        begun: wait for these first tokens.
    """
    waiting = len(bodies)
    all_begun = asyncio.Event()

    def on_first(answer: Answer) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting == 0:
            all_begun.set()

    tasks = [asyncio.create_task(deployment.ask(body, on_first=on_first)) for body in bodies]
    if begun:
        async with asyncio.timeout(60):
            await all_begun.wait()
    await asyncio.sleep(after_s)
    broken_at = time.perf_counter()
    await fault()
    answers = await asyncio.gather(*tasks)
    return DisturbedRun(expected=expected, answers=answers, broken_at=broken_at)
