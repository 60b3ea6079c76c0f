import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from tests.sim.conn import HIGH_WATER, Conn
from tests.sim.loop import SimLoop, run
from tests.sim.net import Net


def in_net(scenario: Callable[[Net], Awaitable[None]], *, seed: int = 0) -> None:
    """Runs a scenario in a new net."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await scenario(Net(loop, random.Random(seed + 1)))

    run(main, rng=random.Random(seed))


async def pair(net: Net) -> tuple[Conn, Conn]:
    """Connects "a" to "b"."""
    accepted: list[Conn] = []
    net.listen("b", 80, accepted.append)
    conn = await net.connect("a", "b", 80)
    await asyncio.sleep(0)
    return conn, accepted[0]


async def took(work: Awaitable[object]) -> float:
    """Awaits something and returns the virtual seconds."""
    begin = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - begin


def test_messages_arrive_whole_in_order_and_late_then_a_clean_end() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        for i in range(50):
            a.push(b"%d" % i)
        a.close()
        assert 0.0002 <= await took(b.recv()) <= 0.003
        assert [await b.recv() for _ in range(49)] == [b"%d" % i for i in range(1, 50)]
        assert await b.recv() is None
        assert await b.recv() is None
        with pytest.raises(ConnectionResetError, match="closed here"):
            await a.recv()
        b.close()
        await asyncio.sleep(1)
        assert not net.conns

    in_net(scenario)


def test_nobody_listening_refuses_after_a_delay() -> None:
    async def scenario(net: Net) -> None:
        begin = net.loop.time()
        with pytest.raises(ConnectionRefusedError):
            await net.connect("a", "b", 80)
        assert net.loop.time() > begin
        net.listen("b", 80, lambda _: None)
        await net.connect("a", "b", 80)
        with pytest.raises(OSError, match="in use"):
            net.listen("b", 80, lambda _: None)
        net.unlisten("b")
        with pytest.raises(ConnectionRefusedError):
            await net.connect("a", "b", 80)

    in_net(scenario)


def test_a_full_sender_waits_for_the_reader() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        half = b"x" * (HIGH_WATER // 2)
        await a.send(half)
        await a.send(half)
        sending = asyncio.create_task(a.send(b"more"))
        await asyncio.sleep(5)
        assert not sending.done()
        await b.recv()
        assert 0 < await took(sending) < 0.01
        assert a.unread == HIGH_WATER // 2 + 4

    in_net(scenario)


def test_a_waiting_sender_learns_of_the_loss() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        await a.send(b"x" * HIGH_WATER)
        sending = asyncio.create_task(a.send(b"more"))
        await asyncio.sleep(1)
        b.abort()
        with pytest.raises(ConnectionResetError):
            await sending

    in_net(scenario)


def test_a_loss_comes_after_what_was_sent_before_it() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        lost: list[float] = []
        a.watch(lambda: lost.append(net.loop.time()))
        b.push(b"1")
        b.push(b"2")
        net.kill_host("b")
        assert await took(a.recv()) < 0.004
        assert await a.recv() == b"2"
        with pytest.raises(ConnectionResetError, match="reset"):
            await a.recv()
        await asyncio.sleep(0)
        assert len(lost) == 1
        with pytest.raises(ConnectionResetError):
            await a.send(b"")
        with pytest.raises(ConnectionResetError, match="killed"):
            await b.recv()
        with pytest.raises(ConnectionRefusedError):
            await net.connect("a", "b", 80)

    in_net(scenario)


def test_data_for_a_closed_end_breaks_the_connection() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        b.close()
        assert await a.recv() is None
        await a.send(b"late")
        await asyncio.sleep(0.1)
        with pytest.raises(ConnectionResetError):
            await a.send(b"later")

    in_net(scenario)


def test_a_cut_is_one_way_and_healing_delivers_late_in_order() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        a.push(b"in flight")
        net.cut("a", "b")
        a.push(b"1")
        b.push(b"other way")
        assert await a.recv() == b"other way"
        reading = asyncio.create_task(b.recv())
        await asyncio.sleep(100)
        assert not reading.done()
        a.push(b"2")
        net.heal("a", "b")
        a.push(b"3")
        assert await took(reading) < 0.3
        assert [reading.result(), *[await b.recv() for _ in range(3)]] == [
            b"in flight",
            b"1",
            b"2",
            b"3",
        ]

    in_net(scenario)


def test_connecting_through_a_cut_hangs_until_it_heals_or_the_caller_gives_up() -> None:
    async def scenario(net: Net) -> None:
        accepted: list[Conn] = []
        net.listen("b", 80, accepted.append)
        net.cut("b", "a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(net.connect("a", "b", 80), 30)
        connecting = asyncio.create_task(net.connect("a", "b", 80))
        await asyncio.sleep(30)
        assert not connecting.done()
        net.heal_all()
        await asyncio.wait_for(connecting, 1)
        with pytest.raises(ConnectionResetError):
            await accepted[0].recv()

    in_net(scenario)


def test_a_kill_behind_a_cut_shows_when_it_heals() -> None:
    async def scenario(net: Net) -> None:
        a, _ = await pair(net)
        net.cut("b", "a")
        net.kill_host("b")
        reading = asyncio.create_task(a.recv())
        await asyncio.sleep(60)
        assert not reading.done()
        net.heal("b", "a")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reading, 1)

    in_net(scenario)


def test_a_host_that_dies_before_it_was_reached_refuses() -> None:
    async def scenario(net: Net) -> None:
        net.listen("b", 80, lambda _: None)
        net.cut("a", "b")
        connecting = asyncio.create_task(net.connect("a", "b", 80))
        await asyncio.sleep(1)
        net.kill_host("b")
        await asyncio.sleep(1)
        assert not connecting.done(), "nothing can answer what has not arrived"
        net.heal_all()
        with pytest.raises(ConnectionRefusedError):
            await connecting

    in_net(scenario)


def test_a_clean_end_stays_one_though_more_was_on_its_way() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        b.push(b"last")
        b.close()
        a.push(b"too late")
        await asyncio.sleep(1)
        assert await a.recv() == b"last"
        assert await a.recv() is None
        with pytest.raises(ConnectionResetError):
            a.push(b"")

    in_net(scenario)


def test_a_clog_delays() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        net.clog("a", "b", 2.0)
        a.push(b"slow")
        b.push(b"fast")
        assert await took(a.recv()) < 0.01
        assert 1.9 < await took(b.recv()) < 2.1
        net.heal("a", "b")
        a.push(b"fast again")
        assert await took(b.recv()) < 0.01

    in_net(scenario)


def test_a_stopped_host_accepts_but_takes_nothing_and_its_processes_stand_still() -> None:
    async def scenario(net: Net) -> None:
        heard: list[bytes | None] = []

        async def read(conn: Conn) -> None:
            while (data := await conn.recv()) is not None:
                heard.append(data)

        tasks: list[asyncio.Task[None]] = []

        async def serve() -> None:
            def accept(conn: Conn) -> None:
                tasks.append(asyncio.create_task(read(conn)))

            net.listen("b", 80, accept)
            await asyncio.Event().wait()

        net.loop.spawn(net.loop.process("b"), serve())
        await asyncio.sleep(0.1)
        before = await net.connect("a", "b", 80)
        net.pause_host("b")
        await before.send(b"1")
        during = await asyncio.wait_for(net.connect("a", "b", 80), 1)
        await during.send(b"2")
        await asyncio.sleep(60)
        assert not heard
        net.resume_host("b")
        await asyncio.sleep(1)
        assert sorted(heard, key=str) == [b"1", b"2"]
        net.kill_host("b")
        before.push(b"3")
        await asyncio.sleep(1)
        assert len(heard) == 2
        assert not any(t.done() for t in tasks), "kill -9 runs no clean-up"

    in_net(scenario)


@pytest.mark.parametrize("fault", ["stopped", "cut there", "cut back"])
def test_pings_end_a_connection_whose_other_side_is_silent(fault: str) -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        a.keep_alive(2.0, 4.0)
        await asyncio.sleep(100)
        if fault == "stopped":
            net.pause_host("b")
        else:
            net.cut(*(("a", "b") if fault == "cut there" else ("b", "a")))
        begin = net.loop.time()
        with pytest.raises(ConnectionResetError, match="ping"):
            await a.recv()
        assert 4.0 <= net.loop.time() - begin <= 6.0
        net.heal_all()
        net.resume_host("b")
        with pytest.raises(ConnectionResetError, match="reset"):
            await b.recv()

    in_net(scenario)


def test_a_short_silence_is_forgiven() -> None:
    async def scenario(net: Net) -> None:
        a, b = await pair(net)
        a.keep_alive(2.0, 4.0)
        for _ in range(5):
            net.cut("a", "b")
            await asyncio.sleep(3)
            net.heal_all()
            await asyncio.sleep(2.5)
        b.push(b"alive")
        assert await a.recv() == b"alive"
        net.kill_host("a")

    in_net(scenario)


def test_byte_streams_of_asyncio_run_over_it() -> None:
    async def scenario(net: Net) -> None:
        accepted: list[Conn] = []
        net.listen("b", 80, accepted.append)
        reader, writer = await asyncio.open_connection("b", 80)
        server = accepted[0]
        assert writer.get_extra_info("peername") == ("b", 80)
        writer.write(b"one\ntw")
        writer.write(b"o\n")
        assert await server.recv() == b"one\ntw"
        assert await server.recv() == b"o\n"
        server.push(b"answer\nrest")
        assert await reader.readline() == b"answer\n"
        writer.write(b"x" * HIGH_WATER)
        draining = asyncio.create_task(writer.drain())
        await asyncio.sleep(5)
        assert not draining.done()
        await server.recv()
        await asyncio.wait_for(draining, 1)
        server.close()
        assert await reader.read() == b"rest"
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 1)
        with pytest.raises(ConnectionResetError):
            await server.recv()
        await asyncio.sleep(1)
        assert not net.conns

    in_net(scenario)


def test_a_lost_byte_stream_tells_its_reader() -> None:
    async def scenario(net: Net) -> None:
        net.listen("b", 80, lambda _: None)
        reader, writer = await asyncio.open_connection("b", 80)
        net.kill_host("b")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert writer.is_closing()
        writer.write(b"into the void")

    in_net(scenario)


def test_a_large_answer_waits_for_a_reader_that_pauses() -> None:
    async def scenario(net: Net) -> None:
        accepted: list[Conn] = []
        net.listen("b", 80, accepted.append)
        reader, writer = await asyncio.open_connection("b", 80, limit=1000)
        for _ in range(100):
            accepted[0].push(b"y" * 100)
        await asyncio.sleep(1)
        assert accepted[0].unread > 5000, "a full StreamReader pauses its transport"
        assert await reader.readexactly(10_000) == b"y" * 10_000
        writer.close()

    in_net(scenario)


def test_a_seed_gives_the_same_delays() -> None:
    def arrivals(seed: int) -> list[float]:
        times: list[float] = []

        async def scenario(net: Net) -> None:
            a, b = await pair(net)
            for _ in range(20):
                a.push(b"x")
                await b.recv()
                times.append(net.loop.time())

        in_net(scenario, seed=seed)
        return times

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)
