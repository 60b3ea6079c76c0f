from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.operator.fake_cluster import FakeCluster

from octavo.operator.cluster import Key, UnavailableError
from octavo.operator.kinds import LEASE
from octavo.operator.lease import DURATION_S, LeaseHolder, LeaseLostError
from octavo.runtime.env import SystemEnv

KEY = Key("octavo", "operator")


class World:
    """A cluster, a clock that the test turns, and operators that want the Lease."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.time = 0.0

    def holder(self, identity: str) -> LeaseHolder:
        return LeaseHolder(
            self.cluster, KEY, identity=identity, now=lambda: self.time, env=SystemEnv()
        )

    @property
    def spec(self) -> dict[str, object]:
        found = self.cluster.peek(LEASE, "operator", "octavo")
        assert found is not None
        spec: dict[str, object] = found["spec"]
        return spec

    async def tick(self, *waiting: asyncio.Task[None], seconds: float) -> None:
        """Lets time pass for tasks that sleep."""
        self.time += seconds
        await turn()


async def turn() -> None:
    """Lets everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def short_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.operator.lease.RENEW_S", 0.01)


def run(case: Callable[[World], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        async with asyncio.timeout(30):
            await case(World())

    asyncio.run(wrapped())


async def gets_it(holder: LeaseHolder, within_s: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await holder.acquire()
    except TimeoutError:
        return False
    return True


def test_the_first_one_gets_it_and_the_second_waits() -> None:
    async def case(world: World) -> None:
        first, second = world.holder("first"), world.holder("second")
        assert await gets_it(first)
        assert first.is_held()
        assert not await gets_it(second)
        assert not second.is_held()
        assert world.spec["holderIdentity"] == "first"
        assert world.spec["leaseTransitions"] == 1

    run(case)


def test_one_that_is_not_renewed_is_taken_after_its_duration_by_the_taker_s_clock() -> None:
    async def case(world: World) -> None:
        first, second = world.holder("first"), world.holder("second")
        await first.acquire()
        assert not await gets_it(second)
        world.time += DURATION_S - 1
        assert not await gets_it(second)
        assert not first.is_held(), "the holder gives up earlier than anybody takes it"
        world.time += 1
        assert await gets_it(second)
        assert (second.is_held(), world.spec["leaseTransitions"]) == (True, 2)
        with pytest.raises(LeaseLostError, match="second"):
            await first.keep()

    run(case)


def test_a_renewed_one_is_kept() -> None:
    async def case(world: World) -> None:
        first, second = world.holder("first"), world.holder("second")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        before = world.spec["renewTime"]
        for _ in range(4):
            world.time += DURATION_S / 2
            assert not await gets_it(second, within_s=0.05)
        assert first.is_held()
        assert world.spec["renewTime"] != before
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run(case)


def test_a_holder_without_api_server_stops_acting_and_goes_on_with_it() -> None:
    async def case(world: World) -> None:
        first = world.holder("first")
        await first.acquire()
        keeping = asyncio.create_task(first.keep())
        world.cluster.fail(UnavailableError("away"))
        world.time += DURATION_S
        assert not first.is_held()
        world.cluster.faults.clear()
        async with asyncio.timeout(1):
            while not first.is_held():
                await asyncio.sleep(0.005)
        assert not keeping.done()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    run(case)


def test_a_released_one_is_taken_at_once() -> None:
    async def case(world: World) -> None:
        first, second = world.holder("first"), world.holder("second")
        await first.acquire()
        await first.release()
        assert not first.is_held()
        assert await gets_it(second)
        await first.release()
        assert world.spec["holderIdentity"] == "second", "what is not ours is not released"

    run(case)


def test_of_two_that_take_it_at_once_one_gets_it() -> None:
    async def case(world: World) -> None:
        holders = [world.holder(f"h{number}") for number in range(5)]
        tasks = [asyncio.create_task(holder.acquire()) for holder in holders]
        await asyncio.wait(tasks, timeout=0.1)
        assert [holder.is_held() for holder in holders].count(True) == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(case)
