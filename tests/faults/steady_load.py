"""Requests at a steady rate while something breaks, each answer held to what it must be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.faults.deployment import Deployment
from tests.faults.figures import milliseconds, quantile
from tests.faults.stream_client import Answer
from tests.faults.workload import Body

_MOST_OPEN = 64
"""More than these are a machine that is too slow for the rate, which would be what is tested."""


class SteadyLoad:
    """An async context: it begins with an undisturbed run and ends when it is left.

    Args:
        deployment: who is asked.
        bodies: asked in turn.
        pause_s: between two requests; they overlap, as long as not too many are open.
        keyed: send an idempotency key with each, so that each touches the store.
    """

    def __init__(
        self,
        deployment: Deployment,
        bodies: Sequence[Body],
        *,
        pause_s: float = 0.02,
        keyed: bool = True,
    ) -> None:
        self._deployment = deployment
        self._bodies = bodies
        self._pause_s = pause_s
        self._keyed = keyed
        self._tasks: list[asyncio.Task[Answer]] = []
        self._room = asyncio.Semaphore(_MOST_OPEN)
        self._expected: list[object] = []
        self._driver: asyncio.Task[None]
        self.answers: list[Answer] = []
        """All of them, once the context is left."""

    async def __aenter__(self) -> SteadyLoad:
        reference = [await self._deployment.ask(body) for body in self._bodies]
        assert all(answer.ok for answer in reference), [a.error for a in reference]
        self._expected = [answer.content for answer in reference]
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        self.answers = await asyncio.gather(*self._tasks)

    async def _drive(self) -> None:
        while True:
            await self._room.acquire()
            number = len(self._tasks)
            headers = {"Idempotency-Key": f"steady-{id(self)}-{number}"} if self._keyed else {}
            asking = self._deployment.ask(self._bodies[number % len(self._bodies)], headers)
            self._tasks.append(asyncio.create_task(asking))
            self._tasks[-1].add_done_callback(lambda _: self._room.release())
            await asyncio.sleep(self._pause_s)

    @property
    def failed(self) -> list[str]:
        """What went wrong with any of the answers."""
        wrong = []
        for number, answer in enumerate(self.answers):
            if not answer.ok:
                wrong.append(f"{number}: {answer.status} {answer.error or 'broken off'}")
            elif answer.content != self._expected[number % len(self._bodies)]:
                wrong.append(f"{number}: another answer")
        return wrong

    def ttft_s(self, begin: float, end: float) -> list[float]:
        """Returns times to the first token of requests sent in a span of `perf_counter`."""
        return [a.ttft_s for a in self.answers if begin <= a.begin < end]

    def figures(self, fault_at: float, healed_at: float) -> dict[str, object]:
        """Returns first-token times before the fault, in its first second, and after that."""
        spans = {
            "before": (0.0, fault_at),
            "first_second": (fault_at, fault_at + 1),
            "later": (fault_at + 1, healed_at),
        }
        times = {name: self.ttft_s(*span) for name, span in spans.items()}
        base = quantile(times["before"], 0.99)
        return {
            "requests": len(self.answers),
            "failed": len(self.failed),
            **{f"ttft_ms_{name}": milliseconds(values) for name, values in times.items()},
            **{
                f"added_p99_ms_{name}": round(1e3 * (quantile(times[name], 0.99) - base), 1)
                for name in ("first_second", "later")
                if times[name]
            },
        }
