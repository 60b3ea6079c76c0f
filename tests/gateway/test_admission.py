from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from octavo.gateway import admission as module
from octavo.gateway.admission import Admission, Upload
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.overload import Level, Memory
from octavo.v1.errors import BODY_TIMEOUT, OVERLOADED, SLOW_CLIENT, OctavoError

KB = 1024


def door(*, max_requests: int = 100, max_body_bytes_total: int = 1000 * KB) -> Admission:
    return Admission(
        max_requests=max_requests,
        max_body_bytes_total=max_body_bytes_total,
        metrics=GatewayMetrics(CollectorRegistry()),
    )


def at(percent: float) -> Memory:
    return Memory(used_bytes=int(percent * 100 * KB), limit_bytes=10_000 * KB)


class Buffer:
    """A running answer."""

    def __init__(self, held_bytes: int, *, is_slow: bool = True) -> None:
        self.held_bytes = held_bytes
        self.is_slow = is_slow
        self.error: OctavoError | None = None

    def end(self, error: OctavoError) -> None:
        self.error = error
        self.held_bytes = 0


class Client:
    """Sends a body in pieces; each arrives when `send` is called."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, size: int) -> None:
        self._pieces.put_nowait(b"x" * size)

    async def receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": await self._pieces.get(), "more_body": True}


async def read(upload: Upload) -> None:
    while True:
        await upload.receive()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def refused(admission: Admission, **arguments: bool) -> OctavoError | None:
    try:
        admission.check(**arguments)
    except OctavoError as error:
        return error
    return None


def test_beyond_the_cap_requests_are_told_when_to_come_back() -> None:
    async def scenario() -> None:
        admission = door(max_requests=2)
        with ExitStack() as inside:
            for _ in range(2):
                assert refused(admission) is None
                inside.enter_context(admission.request())
            assert refused(admission) is not None
            with pytest.raises(OctavoError), admission.upload(Client().receive):
                pass
        assert (refused(admission), admission.num_open) == (None, 0)

    run(scenario)


def test_the_last_places_are_not_for_the_lowest_class() -> None:
    async def scenario() -> None:
        admission = door(max_requests=10)
        with ExitStack() as inside:
            for _ in range(9):
                assert refused(admission, low=True) is None
                inside.enter_context(admission.request())
            assert refused(admission, low=True) is not None
            assert refused(admission) is None

    run(scenario)


def test_places_are_promised_once_each() -> None:
    async def scenario() -> None:
        admission = door(max_requests=1)
        with admission.request():
            errors = [refused(admission) for _ in range(20)]
        assert {e.kind for e in errors if e is not None} == {OVERLOADED}
        times = [e.retry_after_ms for e in errors if e is not None]
        assert times[0] >= 1000
        assert times == sorted(times)
        assert times[-1] > 10 * times[0]

    run(scenario)


@pytest.mark.parametrize(
    ("percent", "low", "other"),
    [(84, False, False), (86, True, False), (93, True, True), (96, True, True)],
)
def test_short_memory_refuses_the_lowest_class_first(percent: int, low: bool, other: bool) -> None:
    async def scenario() -> None:
        admission = door()
        with admission.request():
            admission.observe(at(percent))
            assert (refused(admission, low=True) is not None) == low
            assert (refused(admission) is not None) == other
            admission.observe(at(50))
            assert refused(admission, low=True) is None

    run(scenario)


def test_what_memory_alone_forbids_is_let_in_when_nothing_else_could_end() -> None:
    async def scenario() -> None:
        admission = door()
        admission.observe(at(99))
        assert refused(admission) is None
        with admission.upload(Client().receive):
            assert refused(admission) is not None

    run(scenario)


def test_the_largest_slow_readers_go_first_and_only_as_many_as_it_takes() -> None:
    async def scenario() -> None:
        admission = door()
        small, middle, large = (Buffer(n * KB) for n in (100, 200, 300))
        well_behaved = Buffer(10 * KB)
        whole = Buffer(900 * KB, is_slow=False)
        with admission.request() as hold:
            for buffer in (small, whole, middle, well_behaved, large):
                hold(buffer)
            admission.observe(at(96))  # 400 KB above 92 %
            ended = [b.error.kind for b in (large, middle) if b.error is not None]
            assert ended == [SLOW_CLIENT, SLOW_CLIENT]
            assert (small.error, whole.error, well_behaved.error) == (None, None, None)

    run(scenario)


def test_answers_in_one_piece_go_when_the_slow_readers_are_not_enough() -> None:
    async def scenario() -> None:
        admission = door()
        slow, whole, well_behaved = Buffer(100 * KB), Buffer(900 * KB, is_slow=False), Buffer(KB)
        with admission.request() as hold:
            for buffer in (whole, slow, well_behaved):
                hold(buffer)
            admission.observe(at(96))
        assert slow.error is not None
        assert slow.error.kind is SLOW_CLIENT
        assert whole.error is not None
        assert whole.error.kind is OVERLOADED
        assert well_behaved.error is None

    run(scenario)


def test_what_no_running_request_needs_goes_first() -> None:
    async def scenario() -> None:
        wanted: list[int] = []

        def give_up(wanted_bytes: int) -> int:
            wanted.append(wanted_bytes)
            return 300 * KB if len(wanted) == 1 else 0

        metrics = GatewayMetrics(CollectorRegistry())
        admission = Admission(
            max_requests=9, max_body_bytes_total=1, metrics=metrics, give_up=give_up
        )
        buffers = [Buffer(100 * KB), Buffer(90 * KB)]
        with admission.request() as hold:
            for buffer in buffers:
                hold(buffer)
            admission.observe(at(94))
            assert wanted == []
            admission.observe(at(96))  # 400 KB above 92 %
            assert wanted == [400 * KB]
            assert [b.error is not None for b in buffers] == [True, False]
            admission.observe(at(96))
            assert wanted == [400 * KB], "it is about to come free"

    run(scenario)


def test_memory_that_is_about_to_come_free_costs_nobody_else_anything() -> None:
    async def scenario() -> None:
        admission = door()
        buffers = [Buffer(500 * KB) for _ in range(3)]
        with admission.request() as hold:
            for buffer in buffers:
                hold(buffer)
            for _ in range(5):
                admission.observe(at(96))
            assert len([b for b in buffers if b.error]) == 1
            admission.observe(at(99))
            assert len([b for b in buffers if b.error]) == 2, "it grows all the same"

    run(scenario)


def test_bodies_are_counted_while_they_are_read_and_not_longer() -> None:
    async def scenario() -> None:
        admission, client = door(), Client()
        with admission.upload(client.receive) as upload:
            for size in (100, 200):
                client.send(size)
                await upload.receive()
            assert admission.body_bytes == upload.held_bytes == 300
        assert admission.body_bytes == 0

    run(scenario)


def test_when_all_bodies_are_too_large_together_the_largest_goes_at_once() -> None:
    async def scenario() -> None:
        admission = door(max_body_bytes_total=100 * KB)
        clients = [Client() for _ in range(3)]
        with ExitStack() as stack:
            uploads = [stack.enter_context(admission.upload(c.receive)) for c in clients]
            reading = [asyncio.create_task(read(u)) for u in uploads]
            for client, size in zip(clients, (20, 60, 10), strict=True):
                client.send(size * KB)
            await settle()
            assert not any(task.done() for task in reading)
            clients[2].send(15 * KB)  # 105 KB: the second one, which waits for its client, goes
            await asyncio.wait([reading[1]])
            error = reading[1].exception()
            assert isinstance(error, OctavoError)
            assert error.kind is OVERLOADED
            assert not reading[0].done()
            assert not reading[2].done()
            assert admission.body_bytes == 45 * KB
            for task in reading:
                task.cancel()
            await asyncio.wait(reading)
        assert admission.body_bytes == 0

    run(scenario)


def test_the_largest_body_may_be_the_one_that_asks_for_more() -> None:
    async def scenario() -> None:
        admission, client = door(max_body_bytes_total=10 * KB), Client()
        with admission.upload(client.receive) as upload:
            client.send(20 * KB)
            with pytest.raises(OctavoError) as caught:
                await upload.receive()
            assert caught.value.kind is OVERLOADED
            with pytest.raises(OctavoError):
                await upload.receive()
        assert admission.body_bytes == 0

    run(scenario)


def test_a_body_that_is_complete_is_never_given_up() -> None:
    async def scenario() -> None:
        admission, client = door(max_body_bytes_total=10 * KB), Client()

        async def last() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * 8 * KB, "more_body": False}

        with admission.upload(last) as complete, admission.upload(client.receive) as coming:
            await complete.receive()
            client.send(4 * KB)
            with pytest.raises(OctavoError):
                await coming.receive()
            assert admission.body_bytes == complete.held_bytes == 8 * KB

    run(scenario)


def test_a_body_that_stops_coming_ends_and_one_that_comes_steadily_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        admission, steady, stopped = door(), Client(), Client()
        with admission.upload(steady.receive) as upload, admission.upload(stopped.receive) as other:
            stopped.send(10)
            ending = asyncio.create_task(read(other))
            for _ in range(8):
                steady.send(1000)
                await upload.receive()
                await asyncio.sleep(0.05)
            assert ending.done()
            error = ending.exception()
            assert isinstance(error, OctavoError)
            assert error.kind is BODY_TIMEOUT

    monkeypatch.setattr(module, "BODY_GRACE_S", 0.2)
    monkeypatch.setattr(module, "BODY_BYTES_PER_S", 1000)
    run(scenario)


def test_its_timer_measures_the_loop_and_reads_the_memory() -> None:
    async def scenario() -> None:
        metrics = GatewayMetrics(CollectorRegistry())
        admission = Admission(max_requests=1, max_body_bytes_total=1, metrics=metrics)
        loop = asyncio.get_running_loop()
        trims: list[float] = []
        running = asyncio.create_task(
            admission.run(lambda: at(90), lambda: trims.append(loop.time()))
        )
        while not trims:
            await asyncio.sleep(0.01)
        assert admission.level == Level.LOW_REFUSED
        blocked_until = loop.time() + 0.3
        while loop.time() < blocked_until:
            pass
        await asyncio.sleep(module.TICK_S)
        running.cancel()
        late = metrics.registry.get_sample_value("octavo_gateway_loop_lag_seconds_sum")
        assert late is not None
        assert late >= 0.3 - module.TICK_S

    run(scenario)
