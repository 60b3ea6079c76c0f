import asyncio
import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.sim.loop import DeadlockError, LimitError, SimError, SimLoop, run
from tests.sim.process import PROCESS

ROOT = Path(__file__).parents[2]


def sim_loop() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


def test_an_hour_of_sleep_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    begin = time.thread_time()  # not the time in which a busy machine does other work
    assert run(main, rng=random.Random(0)) == pytest.approx(4600)
    assert time.thread_time() - begin < 1


def test_timeouts_groups_and_context_variables_work() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def late(name: str, delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            seen.append(name)

        async def both() -> None:
            async with asyncio.timeout(1.5), asyncio.TaskGroup() as group:
                group.create_task(late("a", 1.0))
                group.create_task(late("b", 2.0))

        with pytest.raises(TimeoutError):
            await both()
        await asyncio.wait_for(late("c", 1.0), 2.0)
        return seen

    assert run(main, rng=random.Random(0)) == ["a", "c"]


def test_callbacks_keep_their_order_and_task_wakeups_do_not() -> None:
    async def main() -> tuple[list[int], list[int]]:
        called: list[int] = []
        woken: list[int] = []
        bell = asyncio.Event()

        async def wait(number: int) -> None:
            await bell.wait()
            woken.append(number)

        tasks = [asyncio.create_task(wait(i)) for i in range(8)]
        await asyncio.sleep(1)
        bell.set()
        for i in range(8):
            asyncio.get_running_loop().call_soon(called.append, i)
        await asyncio.gather(*tasks)
        return called, woken

    results = [run(main, rng=random.Random(seed)) for seed in range(20)]
    assert all(called == list(range(8)) for called, _ in results)
    assert len({tuple(woken) for _, woken in results}) > 15
    assert all(sorted(woken) == list(range(8)) for _, woken in results)


def test_timers_of_one_moment_keep_their_order_and_cancelled_ones_never_move_the_time() -> None:
    async def main() -> tuple[list[int], float]:
        loop = asyncio.get_running_loop()
        called: list[int] = []
        for i in range(50):
            loop.call_at(loop.time() + 1, called.append, i)
        for handle in [loop.call_later(5000, called.append, -1) for _ in range(3000)]:
            handle.cancel()
        begin = loop.time()
        await asyncio.sleep(2)
        return called, loop.time() - begin

    called, took = run(main, rng=random.Random(0))
    assert called == list(range(50))
    assert took == pytest.approx(2)


def test_a_deadlock_names_who_waits_where() -> None:
    async def sit() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(sit(), name="sitter")

    with pytest.raises(DeadlockError, match=r"sitter \(.*sit:\d+\)"):
        run(main, rng=random.Random(0))


def test_turns_and_virtual_time_are_limited() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def dawdle() -> None:
        while True:
            await asyncio.sleep(10)

    with pytest.raises(LimitError, match="turns"):
        run(spin, rng=random.Random(0), max_steps=1000)
    with pytest.raises(LimitError, match="later"):
        run(dawdle, rng=random.Random(0), limit_s=1000)


def test_leftover_tasks_are_ended_and_reported() -> None:
    ended: list[str] = []

    async def stay(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    async def main() -> None:
        for name in ("x", "y"):
            asyncio.create_task(stay(name), name=name)  # noqa: RUF006
        await asyncio.sleep(0)

    loop = SimLoop(rng=random.Random(0))
    run(main, rng=random.Random(0), loop=loop)
    assert loop.leftovers == ["x", "y"]
    assert sorted(ended) == ["x", "y"]


def test_an_exception_left_to_nobody_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    async def task() -> None:
        asyncio.create_task(fail())  # noqa: RUF006
        await asyncio.sleep(1)

    async def callback() -> None:
        asyncio.get_running_loop().call_soon(int, "x")
        await asyncio.sleep(1)

    for main in (task, callback):
        with pytest.raises(SimError, match="1 exceptions") as info:
            run(main, rng=random.Random(0))
        assert isinstance(info.value.__cause__, ValueError)


def test_threads_and_real_connections_do_not_exist() -> None:
    async def main() -> None:
        with pytest.raises(SimError, match="threads"):
            await asyncio.to_thread(print)
        sim_loop().add_signal_handler(15, print)
        address = await sim_loop().getaddrinfo("nowhere", 80)
        assert address[0][4] == ("nowhere", 80)

    run(main, rng=random.Random(0))


def test_a_paused_process_stands_still_with_its_timers() -> None:
    seen: list[float] = []

    async def tick() -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            seen.append(sim_loop().time() - 1000)

    async def main() -> None:
        process = sim_loop().process("a")
        task = sim_loop().spawn(process, tick())
        await asyncio.sleep(1.5)
        sim_loop().pause(process)
        await asyncio.sleep(10)
        sim_loop().resume(process)
        await task

    run(main, rng=random.Random(0))
    assert seen == pytest.approx([1, 11.5, 12.5, 13.5])


def test_a_killed_process_does_not_even_clean_up() -> None:
    seen: list[str] = []

    async def child() -> None:
        process = PROCESS.get()
        assert process is not None
        assert process.host == "a"
        try:
            await asyncio.sleep(5)
        finally:
            seen.append(f"cleaned at {sim_loop().time()}")

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())

    async def main() -> None:
        process = sim_loop().process("a")
        sim_loop().spawn(process, parent())
        await asyncio.sleep(1)
        sim_loop().kill(process)
        sim_loop().resume(process)
        await asyncio.sleep(99)
        assert not seen

    loop = SimLoop(rng=random.Random(0))
    run(main, rng=random.Random(0), loop=loop)
    assert not loop.leftovers
    assert seen == ["cleaned at 1100.0"], "the run clears up at its end"


def trace_of(seed: int) -> str:
    """Runs a small world that uses sets of tasks and strings; returns a digest of all it did."""
    digest = hashlib.sha256()

    async def main() -> None:
        sim_loop().trace = lambda at, name: digest.update(f"{at} {name}\n".encode())
        queue: asyncio.Queue[int] = asyncio.Queue(2)

        async def put() -> None:
            for i in range(20):
                await queue.put(i)
                await asyncio.sleep(0.01 * (i % 3))

        async def get(name: str) -> None:
            while True:
                digest.update(f"{name} {await queue.get()}".encode())
                await asyncio.sleep(0.02)

        getters = {asyncio.create_task(get(n), name=n) for n in ("a", "b", "c", "d")}
        try:
            async with asyncio.timeout(3), asyncio.TaskGroup() as group:
                for _ in range(6):
                    group.create_task(put())
                group.create_task(asyncio.sleep(9))
        except TimeoutError:
            digest.update(b"timeout")
        for task in getters:  # a set: its order follows the hashes
            task.cancel()
        await asyncio.gather(*getters, return_exceptions=True)

    run(main, rng=random.Random(seed))
    return digest.hexdigest()


def test_a_seed_gives_one_trace_in_processes_with_other_hash_seeds() -> None:
    code = "from tests.sim.test_loop import trace_of; print(*map(trace_of, range(4)))"
    paths = [ROOT, *(ROOT / folder for folder in ("services", "operator", "kernels", "proto"))]
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    traces = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("0", "1", "random")
    ]
    assert traces[0] == traces[1] == traces[2] == [trace_of(seed) for seed in range(4)]
    assert len(set(traces[0])) == 4
