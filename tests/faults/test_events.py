"""KV events that get lost, repeated, mixed up or cut: routing recovers, answers never notice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.bounds import EVENTUALLY_S
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import milliseconds, record
from tests.faults.message_proxy import MessageProxy, OnState, unchanged
from tests.faults.proxy import Proxy, Way
from tests.faults.workload import Body, bodies, body
from tests.ports import lasting_port

from octavo.v1.engine_pb2 import StateUpdate

Tamper = Callable[[], OnState]


def lose_every_third() -> OnState:
    return lambda update: [] if update.seq % 3 == 2 else [update]


def repeat() -> OnState:
    return lambda update: [update, update]


def swap_neighbours() -> OnState:
    held: list[StateUpdate] = []

    def on_state(update: StateUpdate) -> Sequence[StateUpdate]:
        if update.seq > 1 and not held:
            held.append(update)
            return []
        return [update, held.pop()] if held else [update]

    return on_state


def cut_snapshots() -> OnState:
    """The snapshot loses its blocks, and with them its number."""

    def on_state(update: StateUpdate) -> Sequence[StateUpdate]:
        return [] if update.cleared else [update]

    return on_state


TAMPERS: list[Tamper] = [lose_every_third, repeat, swap_neighbours, cut_snapshots]


@asynccontextmanager
async def tampered(model: Path, folder: Path) -> AsyncIterator[tuple[Deployment, MessageProxy]]:
    """One engine with a small pool, so that blocks are evicted, behind the message proxy."""
    port = lasting_port()
    deployment = Deployment(
        folder,
        model=model,
        engines=1,
        engine_flags=["--kv-bytes", "300000", "--max-model-len", "1024"],
        through=[f"127.0.0.1:{port}"],
    )
    async with MessageProxy(deployment.engines[0].address, port) as proxy, deployment:
        yield deployment, proxy


def prompts(count: int) -> list[Body]:
    rng = random.Random(8)
    return [body(0, 4, prompt=[rng.randrange(256) for _ in range(250)]) for _ in range(count)]


async def index_is_true(d: Deployment, asked: Sequence[Body]) -> bool:
    """Tells whether the gateway expects of each prompt just what the engine holds."""
    for one in asked:
        await asyncio.sleep(0.15)  # two messages of the state stream
        answer = await d.ask(one)
        if answer.route[1] != answer.cached_tokens:
            return False
    return True


def test_tampered_events_change_no_answer_and_leave_no_trace(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tampered(model, tmp_path) as (d, proxy):
            asked = prompts(6)
            expected = [(await d.ask(one)).content for one in asked]
            for tamper in TAMPERS:
                proxy.on_state = tamper()
                before = proxy.num_state_streams
                for one, content in zip(asked * 2, expected * 2, strict=True):
                    assert (await d.ask(one)).content == content, tamper.__name__
                    await asyncio.sleep(0.06)  # a message of the state stream for each
                assert proxy.num_state_streams > before or tamper is cut_snapshots
                proxy.on_state = unchanged
                async with asyncio.timeout(EVENTUALLY_S):
                    while not await index_is_true(d, asked[:3]):
                        pass

    asyncio.run(scenario())


@pytest.mark.faults
def test_a_silent_state_stream_costs_routing_only(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tampered(model, tmp_path) as (d, proxy):
            asked = prompts(5)
            expected = [(await d.ask(one)).content for one in asked]
            proxy.on_state = lambda _: []
            for _ in range(10):
                assert [(await d.ask(one)).content for one in asked] == expected
                await asyncio.sleep(0.5)
            proxy.on_state = unchanged
            async with asyncio.timeout(EVENTUALLY_S):
                while not await index_is_true(d, asked[:3]):
                    pass

    asyncio.run(scenario())


def burst(blocks: int) -> OnState:
    """Adds so many stored blocks to the next message, in messages of the usual size."""
    shift = 0

    def on_state(update: StateUpdate) -> Sequence[StateUpdate]:
        nonlocal shift
        extra = []
        if shift == 0:
            rng = random.Random(1)
            for _ in range(0, blocks, 8192):
                shift += 1
                more = StateUpdate(epoch=update.epoch, stage=update.stage, seq=update.seq + shift)
                parent = b""
                for _ in range(8192):
                    stored = more.stored.add(hash=rng.randbytes(16), parent=parent)
                    parent = stored.hash
                extra.append(more)
            return [update, *extra]
        update.seq += shift
        return [update]

    return on_state


@pytest.mark.faults
def test_a_hundred_thousand_events_at_once(model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with tampered(model, tmp_path) as (d, proxy):
            [long] = prompts(1)
            long |= {"max_tokens": 600}
            expected = (await d.ask(long)).content
            quiet = await answer_times(d, 1.0)
            proxy.on_state = burst(100_000)
            asking = asyncio.create_task(d.ask(long))
            loud = await answer_times(d, 3.0)
            assert (await asking).content == expected
            record(
                "event_burst", events=100_000,
                health_ms_before=milliseconds(quiet), health_ms_during=milliseconds(loud),
            )  # fmt: skip
            assert max(loud) < 2.0

    asyncio.run(scenario())


async def answer_times(d: Deployment, length_s: float) -> list[float]:
    """Returns how long the gateway's simplest page took, asked all the time."""
    end, times = time.perf_counter() + length_s, []
    while (begin := time.perf_counter()) < end:
        await d.get("/healthz")
        times.append(time.perf_counter() - begin)
        await asyncio.sleep(0.005)
    return times


@pytest.mark.faults
@pytest.mark.parametrize("way", [Way.TO_CLIENT, Way.TO_SERVER], ids=lambda w: str(w.value))
def test_a_half_open_connection_is_suspected(way: Way, model: Path, tmp_path: Path) -> None:
    """The first of two engines falls silent, in one direction only."""

    async def scenario() -> None:
        engines = [Engine(f"engine-{i}", model, folder=tmp_path) for i in range(2)]
        async with Proxy(engines[0].port) as proxy:
            d = Deployment(tmp_path, through=[proxy.address, engines[1].address], own=engines)
            async with d:
                asked = bodies(10, 400)
                expected = await undisturbed(d, asked)

                async def hold() -> None:
                    proxy.hold(way)

                run = await disturbed(d, asked, expected, hold, after_s=0.1)
                assert run.wrong == []
                pauses = run.pauses_s(proxy.address)
                record("half_open", way=way.value, pause_ms=milliseconds(pauses))
                proxy.release()
                await d.gateway.engines("ready", 2)
                await d.idle()

    asyncio.run(scenario())
