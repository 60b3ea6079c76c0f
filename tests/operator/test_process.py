"""The operator as a process, from its start to its end, without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from tests.operator import building
from tests.operator.api_stand_in import ApiStandIn

from octavo.operator import crd
from octavo.operator.kinds import INFERENCE_SERVICE, OPTIONAL_KINDS
from octavo.operator.mirror import WATCHED_KINDS

KINDS = tuple(kind for kind in WATCHED_KINDS if kind not in OPTIONAL_KINDS)


def ended(*arguments: str, kubeconfig: Path | str = "/nowhere") -> subprocess.CompletedProcess[str]:
    """Runs a process that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "octavo.operator", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )


def test_the_definition_is_printed() -> None:
    done = ended("crd")
    assert done.returncode == 0
    assert yaml.safe_load(done.stdout) == json.loads(json.dumps(crd.definition()))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "KUBECONFIG"),
        (("--gateway-service=gateway",), "NAMESPACE/NAME"),
        (("--resync-s=0",), "at least 1"),
        (("--resink-s=7",), "--resync-s"),
    ],
    ids=["no cluster", "bad name", "bad number", "unknown flag"],
)
def test_what_it_cannot_start_with_is_said(arguments: tuple[str, ...], words: str) -> None:
    done = ended(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


class Running:
    """A process and the API server that it talks to."""

    def __init__(self, api: ApiStandIn, process: asyncio.subprocess.Process) -> None:
        self.api = api
        self.process = process
        self.port = 0

    async def read_port(self) -> None:
        assert self.process.stderr is not None
        while match := await self.process.stderr.readline():
            if found := re.search(rb'"port": (\d+), "event": "operator_listening"', match):
                self.port = int(found[1])
                return

    async def status(self, path: str) -> int:
        async with httpx.AsyncClient(trust_env=False) as client:
            return (await client.get(f"http://127.0.0.1:{self.port}{path}")).status_code

    async def until(self, path: str, status: int) -> None:
        while await self.status(path) != status:
            await asyncio.sleep(0.05)

    async def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            return await self.process.wait()


@asynccontextmanager
async def running(api: ApiStandIn, folder: Path) -> AsyncIterator[Running]:
    async with api.running(), asyncio.timeout(60):
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "current-context": "c",
                    "clusters": [{"name": "c", "cluster": {"server": api.url}}],
                    "users": [{"name": "u", "user": {"token": api.token}}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                }
            )
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "octavo.operator", "--log-json", "--status-listen=127.0.0.1:0",
            stderr=subprocess.PIPE,
            env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        )  # fmt: skip
        try:
            started = Running(api, process)
            await started.read_port()
            yield started
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def run(case: Callable[[], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await case()

    asyncio.run(wrapped())


def test_it_waits_for_its_definition_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async def case() -> None:
        api = ApiStandIn(*(kind for kind in KINDS if kind != INFERENCE_SERVICE))
        async with running(api, tmp_path) as operator:
            await operator.until("/healthz", 200)
            assert await operator.status("/readyz") == 503
            api.serve(INFERENCE_SERVICE)
            await operator.until("/readyz", 200)
            await api.watched(*KINDS)
            assert await operator.end() == 0
        assert {method for method, _, _ in api.asked} == {"GET"}

    run(case)


def test_it_ends_also_while_it_waits(tmp_path: Path) -> None:
    async def case() -> None:
        async with running(ApiStandIn(), tmp_path) as operator:
            await operator.until("/healthz", 200)
            assert await operator.end() == 0

    run(case)


def test_it_writes_for_what_it_finds(tmp_path: Path) -> None:
    async def case() -> None:
        api = ApiStandIn(*KINDS)
        api.items[INFERENCE_SERVICE] = [building.resource("llama")]
        async with running(api, tmp_path) as operator:
            await operator.until("/readyz", 200)
            await api.written()
            assert await operator.status("/healthz") == 200

    run(case)
