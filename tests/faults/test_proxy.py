"""The fault proxy itself: what it says it breaks is what breaks, to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.faults.http2 import Frame, FrameTap, Kind, goaway, rst_stream
from tests.faults.proxy import (
    CutAfter,
    Drip,
    Filter,
    HalfCloseAfter,
    Plan,
    Proxy,
    StallAfter,
    Way,
)
from tests.faults.resp import Tap, bulk, end_of, take_all, words

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.write(b"(end)")
    except ConnectionError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def echoing(answer: Handler = echo) -> AsyncIterator[int]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def read_all(reader: asyncio.StreamReader, within_s: float = 0.3) -> tuple[bytes, str]:
    """Returns what comes and how it ends: clean, reset or open."""
    got = b""
    try:
        async with asyncio.timeout(within_s):
            while data := await reader.read(1000):
                got += data
    except TimeoutError:
        return got, "open"
    except ConnectionResetError:
        return got, "reset"
    return got, "clean"


@pytest.mark.parametrize(
    ("to_client", "expected"),
    [
        (CutAfter(7), (b"0123456", "reset")),
        (HalfCloseAfter(7), (b"0123456", "clean")),
        (StallAfter(7), (b"0123456", "open")),
        (Drip(2, 0.01), (b"0123456789", "open")),
    ],
    ids=["cut", "half-close", "stall", "drip"],
)
def test_filters_are_exact_to_the_byte(to_client: Filter, expected: tuple[bytes, str]) -> None:
    async def scenario() -> None:
        async with (
            echoing() as port,
            Proxy(port, lambda _: Plan(to_client=to_client)) as proxy,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for byte in b"0123456789":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.001)
            assert await read_all(reader) == expected
            writer.close()

    asyncio.run(scenario())


def test_ends_pass_through_in_each_direction() -> None:
    async def scenario() -> None:
        async with echoing() as port, Proxy(port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"x")
            writer.write_eof()
            assert await read_all(reader, 5) == (b"x(end)", "clean")
            writer.close()

    asyncio.run(scenario())


def test_it_holds_releases_refuses_and_cuts() -> None:
    async def scenario() -> None:
        async with echoing() as port, Proxy(port) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            proxy.hold(Way.TO_CLIENT)
            writer.write(b"x")
            assert await read_all(reader) == (b"", "open")
            proxy.release()
            assert await asyncio.wait_for(reader.read(10), 5) == b"x"
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", proxy.port)
            await proxy.listen()
            proxy.cut()
            assert await read_all(reader, 5) == (b"", "reset")
            writer.close()

    asyncio.run(scenario())


def test_a_new_target_is_for_new_connections() -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read(100)).upper())
        writer.close()

    async def scenario() -> None:
        async with echoing() as old, echoing(shout) as new, Proxy(old) as proxy:
            first = await asyncio.open_connection("127.0.0.1", proxy.port)
            first[1].write(b"a")
            assert await first[0].read(10) == b"a"
            proxy.target = new
            second = await asyncio.open_connection("127.0.0.1", proxy.port)
            for (_, writer), text in ((first, b"b"), (second, b"c")):
                writer.write(text)
            assert await first[0].read(10) == b"b"
            assert await second[0].read(10) == b"C"
            for _, writer in (first, second):
                writer.close()

    asyncio.run(scenario())


VALUES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$-1\r\n",
    b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
    b"%1\r\n+k\r\n$1\r\nv\r\n",
    b"_\r\n",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v.decode()[:4].strip())
def test_resp_values_end_where_they_end(value: bytes) -> None:
    assert end_of(value) == len(value)
    assert all(end_of(value[:i]) is None for i in range(len(value)))


def test_resp_values_are_split_however_they_arrive() -> None:
    stream = b"".join(VALUES)
    for cut in range(len(stream)):
        first, rest = take_all(stream[:cut])
        second, rest = take_all(rest + stream[cut:])
        assert [*first, *second] == VALUES
        assert rest == b""


def test_a_tap_answers_some_commands_itself_and_keeps_the_order() -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        buffer = b""
        while data := await reader.read(1000):
            commands, buffer = take_all(buffer + data)
            for command in commands:
                writer.write(bulk(words(command)[-1]))
        writer.close()

    async def scenario() -> None:
        tap = Tap()
        tap.refuse = lambda c: b"-READONLY\r\n" if c[0] == b"SET" else None
        async with echoing(server) as port, Proxy(port, tap.plan) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"".join(
                b"*2\r\n" + bulk(name) + bulk(key)
                for name, key in ((b"GET", b"a"), (b"SET", b"b"), (b"GET", b"c"))
            ))  # fmt: skip
            expected = bulk(b"a") + b"-READONLY\r\n" + bulk(b"c")
            assert await asyncio.wait_for(reader.readexactly(len(expected)), 5) == expected
            assert tap.commands == [[b"GET", b"a"], [b"SET", b"b"], [b"GET", b"c"]]
            writer.close()

    asyncio.run(scenario())


def test_frames_are_whole_however_they_arrive_and_can_be_dropped() -> None:
    async def drop_pings(way: Way, frame: Frame, pipe: object) -> bool:
        return frame.kind != Kind.PING

    async def scenario() -> None:
        tap = FrameTap(drop_pings)
        ping = Frame(Kind.PING, 0, 0, b"12345678").encode()
        data = Frame(Kind.DATA, 1, 3, b"x" * 70000).encode()
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        sent = preface + ping + data + goaway() + ping + rst_stream(3)
        expected = preface + data + goaway() + rst_stream(3)

        got = asyncio.Queue[bytes]()

        async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            got.put_nowait(await reader.read(-1))
            writer.close()

        async with echoing(keep) as port, Proxy(port, tap.plan) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            for i in range(0, len(sent), 501):
                writer.write(sent[i : i + 501])
                await asyncio.sleep(0)
            writer.write_eof()
            assert await asyncio.wait_for(got.get(), 5) == expected
            assert tap.seen[Way.TO_SERVER, Kind.PING] == 2
            writer.close()

    asyncio.run(scenario())
