"""A whole engine process: stages, serving, draining, dying."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.bounds import EVENTUALLY_S
from tests.engine.harness import generate
from tests.engine.tiny_model import write_tiny_model
from tests.ports import lasting_port

from octavo.engine.process import EXIT_STUCK
from octavo.v1 import engine_pb2, engine_pb2_grpc


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


class EngineProcess:
    """`python -m octavo.engine` with its report pipe."""

    def __init__(self, folder: Path, *flags: str, failpoints: str = "") -> None:
        self.port, self.metrics_port = lasting_port(), lasting_port()
        read_fd, write_fd = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "octavo.engine", "--model", str(folder),
                "--listen", f"127.0.0.1:{self.port}", "--kv-bytes", "20000000",
                "--metrics-listen", f"127.0.0.1:{self.metrics_port}",
                "--report-fd", str(write_fd), *flags,
            ],
            pass_fds=(write_fd,),
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OCTAVO_FAILPOINTS": failpoints},
        )  # fmt: skip
        os.close(write_fd)
        self.report: IO[str] = os.fdopen(read_fd)

    def wait_for(self, stage: str) -> dict[str, object]:
        for line in self.report:
            message: dict[str, object] = json.loads(line)
            if message["stage"] == stage and message["done"]:
                return message
        raise AssertionError(f"no stage {stage!r}; stderr: {self.process.communicate()[1]}")

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.report.close()


@pytest.fixture
def engine(folder: Path) -> Iterator[EngineProcess]:
    process = EngineProcess(folder)
    yield process
    process.end()


async def count_tokens(port: int, **fields: object) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = engine_pb2_grpc.EngineStub(channel)
        call = stub.Generate(generate(list(b"hello"), **fields))
        return sum([len(d.token_ids) async for d in call])


def test_65_it_reports_its_stages_serves_and_drains_on_sigterm(engine: EngineProcess) -> None:
    for stage in ("model", "weights", "memory", "warm-up", "ready"):
        engine.wait_for(stage)
    tokens = asyncio.run(count_tokens(engine.port, max_tokens=5, ignore_eos=True))
    assert tokens == 5
    url = f"http://127.0.0.1:{engine.metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert b'vllm:generation_tokens_total{model_name="' in answer.read()

    async def drained() -> int:
        asking = asyncio.create_task(count_tokens(engine.port, max_tokens=300, ignore_eos=True))
        await asyncio.sleep(0.3)
        engine.process.send_signal(signal.SIGTERM)
        return await asking

    assert asyncio.run(drained()) == 300, "running requests end before the process does"
    assert engine.process.wait(timeout=10) == 0


def probe(engine: EngineProcess, path: str) -> tuple[int, dict[str, object]]:
    url = f"http://127.0.0.1:{engine.metrics_port}{path}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


async def serving(engine: EngineProcess) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def not_serving(engine: EngineProcess) -> bool:
    return not await serving(engine)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while not await condition():
            await asyncio.sleep(0.02)


def test_probes_tell_a_turn_that_lasts_too_long_until_it_ends(folder: Path) -> None:
    # Stale after 1 s; the third step takes 1.9.
    engine = EngineProcess(folder, "--watchdog-s", "2", failpoints="engine.step=sleep(1.9)@3")

    async def check() -> None:
        assert probe(engine, "/healthz") == (200, {"stage": "ready", "step": 0, "step_age_s": 0.0})
        assert probe(engine, "/readyz")[0] == 200
        await until(lambda: serving(engine))
        asking = asyncio.create_task(count_tokens(engine.port, max_tokens=5, ignore_eos=True))

        async def unwell() -> bool:
            status, shown = await asyncio.to_thread(probe, engine, "/healthz")
            assert (status == 503) == (float(str(shown["step_age_s"])) >= 1.0), shown
            return status == 503

        await until(unwell)
        assert probe(engine, "/readyz")[0] == 503
        await until(lambda: not_serving(engine))
        assert await asking == 5
        await until(lambda: serving(engine))
        status, shown = probe(engine, "/healthz")
        assert (status, shown["step"]) == (200, 5)

    try:
        engine.wait_for("ready")
        asyncio.run(check())
    finally:
        engine.end()


def test_a_stuck_engine_ends_itself_with_the_stacks_of_its_threads(folder: Path) -> None:
    engine = EngineProcess(folder, "--watchdog-s", "1", failpoints="engine.step=sleep(60)@2")

    async def ask() -> None:
        with pytest.raises(grpc.aio.AioRpcError):
            await count_tokens(engine.port, max_tokens=5, ignore_eos=True)

    try:
        engine.wait_for("ready")
        asyncio.run(ask())
        _, stderr = engine.process.communicate(timeout=10)
        assert engine.process.returncode == EXIT_STUCK
        assert "engine_stuck" in stderr
        assert "in turn" in stderr
    finally:
        engine.end()


def test_65_it_answers_while_loading(engine: EngineProcess) -> None:
    async def first_stage() -> engine_pb2.StateUpdate:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{engine.port}") as channel:
            stub = engine_pb2_grpc.EngineStub(channel)
            call = stub.State(engine_pb2.StateRequest(), wait_for_ready=True)
            return await anext(aiter(call))

    update = asyncio.run(first_stage())
    assert update.stage in (engine_pb2.STAGE_LOADING, engine_pb2.STAGE_WARMING)
    engine.wait_for("ready")


@pytest.mark.parametrize(
    ("flags", "code", "status"),
    [
        (["--model", "smolm2"], "OCT-1202", 3),
        (["--kv-bytes", "1000000000000000"], "OCT-1204", 4),
        (["--pin-prefix", "/nowhere/pins.jsonl"], "OCT-1205", 2),
    ],
    ids=["no such model", "does not fit", "no such file of prefixes"],
)
def test_a_start_that_fails_says_why_and_exits(
    folder: Path, flags: list[str], code: str, status: int
) -> None:
    process = EngineProcess(folder, *flags)
    message = process.wait_for("failed")
    assert message["code"] == code
    assert message["help"]
    _, stderr = process.process.communicate(timeout=20)
    assert process.process.returncode == status
    assert f"error[{code}]" in stderr
    process.end()


@pytest.mark.parametrize(
    ("flags", "code", "status"),
    [
        (["--max-num-seqs", "0"], "OCT-1205", 2),
        (["--listen", "0.0.0.0:0"], "OCT-1205", 2),
    ],
    ids=["out of range", "not loopback"],
)
def test_bad_settings_stop_the_start(
    folder: Path, flags: list[str], code: str, status: int
) -> None:
    process = EngineProcess(folder, *flags)
    _, stderr = process.process.communicate(timeout=20)
    assert process.process.returncode == status
    assert f"error[{code}]" in stderr
    process.end()
