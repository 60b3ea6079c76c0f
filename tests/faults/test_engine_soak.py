"""Minutes of everything that one engine can be asked, in too little memory; then nothing is left.

OCTAVO_FAULT_SOAK_S sets the length; the promise is made for 1800.
"""

from __future__ import annotations

import asyncio
import random
import urllib.request
from collections import Counter
from pathlib import Path

import grpc
import psutil
import pytest
from tests.engine.harness import generate
from tests.engine.test_process import EngineProcess
from tests.faults.figures import SOAK_S, record

from octavo.v1 import common_pb2, engine_pb2, engine_pb2_grpc

pytestmark = [pytest.mark.faults, pytest.mark.timeout(SOAK_S * 1.5 + 900)]

CLIENTS = 24
WARM_UP = 1 / 6
"""Of the time: arenas, caches and what only rare requests use get their size."""
FLAGS = (
    "--kv-bytes", "60000000", "--max-model-len", "1024", "--max-num-seqs", "32",
    "--host-cache-bytes", "60000000", "--disk-cache-bytes", "100000000",
    "--scheduling-policy", "fair", "--max-queued-requests", "64",
)  # fmt: skip


def drawn(rng: random.Random) -> engine_pb2.GenerateRequest:
    """Returns a request of any kind: a few prefixes, many lengths, choices, beams, deadlines."""
    family, length = rng.randrange(12), rng.choice([5, 40, 200, 500])
    prompt = [1000 + (family * 7919 + i * 31) % 20000 for i in range(length)]
    prompt += [rng.randrange(1000, 20000) for _ in range(rng.randrange(30))]
    width = rng.choice([1, 1, 1, 2, 4])
    proto = generate(
        prompt,
        n=width,
        max_tokens=rng.choice([1, 8, 40, 120]),
        priority=rng.choice([0, 0, 0, 1, -1]),
        fairness_key=rng.choice(["", "a", "b", "c"]),
        remaining_ms=rng.choice([0, 0, 0, 2000, 20000]),
        cache_salt=rng.choice(["", "", "salt"]),
    )
    proto.request_id = ""
    if width > 1 and rng.random() < 0.4:
        proto.beam.width = width
    else:
        proto.sampling.temperature = rng.choice([0.7, 1.0]) if width > 1 else rng.choice([0, 1])
        proto.sampling.seed = rng.randrange(1000)
        if rng.random() < 0.2:
            proto.logprobs = 3
        if rng.random() < 0.1:
            proto.prompt_logprobs = 1
    return proto


class Clients:
    """Direct callers of one engine, and what became of their requests."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.outcomes: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self._engine = engine_pb2_grpc.EngineStub(channel)
        self._control = engine_pb2_grpc.ControlStub(channel)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Lets everybody end after their request."""
        self._stop.set()

    async def ask(self, number: int) -> None:
        """Asks one request after the other; some are left before their end."""
        rng = random.Random(f"client:{number}")
        while not self._stop.is_set():
            proto, leaves = drawn(rng), rng.random() < 0.15
            call = self._engine.Generate(proto, timeout=300)
            try:
                ended = 0
                async for delta in call:
                    ended += delta.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
                    if leaves and rng.random() < 0.2:
                        call.cancel()
                missing = max(proto.n, 1) - ended
                self.outcomes["answered" if not missing else "short"] += 1
                if missing:
                    self.unanswered.append(f"{missing} choices of {proto.n} never ended")
            except asyncio.CancelledError:
                self.outcomes["left"] += 1
            except grpc.aio.AioRpcError as error:
                self._note(error)
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    await asyncio.sleep(0.2)

    async def pin(self) -> None:
        """Pins prefixes and lets them go again."""
        rng = random.Random("pins")
        while not self._stop.is_set():
            ids = [1000 + (rng.randrange(12) * 7919 + i * 31) % 20000 for i in range(64)]
            asked = engine_pb2.PinPrefixRequest(ttl_ms=rng.choice([0, 3000]))
            asked.token_ids.ids.extend(ids)
            try:
                answer = await self._control.PinPrefix(asked, timeout=300)
                await asyncio.sleep(rng.uniform(0, 5))
                name = answer.pin.pin_id
                await self._control.UnpinPrefix(engine_pb2.UnpinPrefixRequest(pin_id=name))
                self.outcomes["pinned"] += 1
            except grpc.aio.AioRpcError as error:  # its time was over, or the budget is spent
                self._note(error)
            await asyncio.sleep(rng.uniform(0, 2))

    def _note(self, error: grpc.aio.AioRpcError) -> None:
        self.outcomes[error.code().name] += 1
        if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
            self.unanswered.append(str(error.details()))

    async def reset(self) -> bool:
        """Forgets the cache; True when no request has blocks."""
        answer = await self._control.ResetCache(engine_pb2.ResetCacheRequest())
        return bool(answer.done)


def metric(engine: EngineProcess, name: str) -> float:
    """Returns the sum of a metric's series."""
    url = f"http://127.0.0.1:{engine.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


async def sampled_rss(process: psutil.Process, seconds: float) -> list[float]:
    """Returns the process's memory, once a second."""
    found: list[float] = []
    for _ in range(int(seconds)):
        await asyncio.sleep(1.0)
        found.append(process.memory_info().rss)
    return found


def test_a_soak_of_everything_leaves_nothing_in_the_engine(tmp_path: Path) -> None:
    engine = EngineProcess(Path("smollm2"), *FLAGS, "--disk-cache-dir", str(tmp_path / "kv"))

    async def soak() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}") as channel:
            clients = Clients(channel)
            work = [asyncio.create_task(clients.ask(i)) for i in range(CLIENTS)]
            work.append(asyncio.create_task(clients.pin()))
            rss = await sampled_rss(psutil.Process(engine.process.pid), SOAK_S * (1 + WARM_UP))
            clients.stop()
            async with asyncio.timeout(360):
                await asyncio.gather(*work)
            warm = rss[int(SOAK_S * WARM_UP) :]
            third = len(warm) // 3
            drift = sum(warm[-third:]) / sum(warm[:third]) - 1
            figures = {
                name: metric(engine, f"octavo:{name}")
                for name in ("preemptions_total", "host_blocks_restored_total")
            }
            record(
                "engine soak", seconds=SOAK_S, outcomes=dict(sorted(clients.outcomes.items())),
                rss_mb=round(warm[-1] / 1e6, 1), rss_drift_percent=round(100 * drift, 2), **figures,
            )  # fmt: skip
            assert clients.unanswered == []
            assert clients.outcomes["answered"]
            assert clients.outcomes["left"]
            assert await clients.reset(), "a request still has blocks"
            assert metric(engine, "vllm:num_requests_running") == 0
            assert metric(engine, "vllm:num_requests_waiting") == 0
            assert drift < 0.05

    try:
        engine.wait_for("ready")
        asyncio.run(soak())
    finally:
        engine.end()
