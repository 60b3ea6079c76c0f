from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from octavo.operator.work_queue import WorkQueue


def run(case: Callable[[WorkQueue[str]], Coroutine[None, None, None]]) -> None:
    async def wrapped() -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            await case(WorkQueue(loop.time))

    asyncio.run(wrapped())


async def taken(queue: WorkQueue[str]) -> str | None:
    """Returns what can be taken at once."""
    try:
        async with asyncio.timeout(0.01):
            return await queue.take()
    except TimeoutError:
        return None


def test_a_key_is_taken_once_however_often_it_was_added() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        for _ in range(5):
            queue.add("a")
        assert len(queue) == 1
        assert await taken(queue) == "a"
        queue.done("a")
        assert await taken(queue) is None

    run(case)


def test_keys_come_in_the_order_of_their_moments() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        queue.add("late", after_s=0.03)
        queue.add("a")
        queue.add("b")
        assert [await queue.take(), await queue.take(), await queue.take()] == ["a", "b", "late"]

    run(case)


def test_the_earlier_of_two_moments_counts() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        queue.add("a", after_s=60)
        queue.add("a")
        queue.add("a", after_s=60)
        assert await taken(queue) == "a"
        queue.done("a")
        assert await taken(queue) is None

    run(case)


def test_what_is_added_during_the_work_comes_afterwards_and_never_beside_it() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        queue.add("a")
        assert await queue.take() == "a"
        queue.add("a")
        queue.add("b")
        assert await taken(queue) == "b"
        assert await taken(queue) is None
        assert queue.num_busy == 2
        queue.done("a")
        assert await taken(queue) == "a"

    run(case)


def test_waiting_takers_wake_for_what_is_added_or_done() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        takers = [asyncio.create_task(queue.take()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.add("a")
        queue.add("b")
        done, waiting = await asyncio.wait(takers, timeout=0.05)
        assert sorted(task.result() for task in done) == ["a", "b"]
        queue.add("a")
        queue.done("a")
        assert await waiting.pop() == "a"

    run(case)


def test_a_forgotten_key_does_not_come() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        queue.add("a")
        queue.forget("a")
        assert len(queue) == 0
        assert await taken(queue) is None
        queue.add("a")
        assert await taken(queue) == "a"

    run(case)


def test_overdue_counts_what_nobody_took_and_not_what_waits_for_its_own_end() -> None:
    async def case(queue: WorkQueue[str]) -> None:
        queue.add("a")
        await queue.take()
        queue.add("a")
        queue.add("later", after_s=60)
        await asyncio.sleep(0.02)
        assert queue.overdue_s() == 0
        queue.add("b")
        await asyncio.sleep(0.02)
        assert queue.overdue_s() == pytest.approx(0.02, abs=0.015)

    run(case)
