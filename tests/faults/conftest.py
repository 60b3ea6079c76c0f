"""What all fault tests share: a model on disk, one deployment of it, and the figures at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests.faults import figures
from tests.faults.deployment import Deployment
from tests.faults.tiny_llama import write_tiny_llama
from tests.faults.workload import poisoned_by_toxin


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if figures.LINES:
        terminalreporter.section("figures")
        for line in figures.LINES:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


class Shared:
    """Two engines and a gateway for many tests; each leaves them as it found them."""

    def __init__(self, runner: asyncio.Runner, deployment: Deployment) -> None:
        self._runner = runner
        self._deployment = deployment

    def run(self, scenario: Callable[[Deployment], Awaitable[None]]) -> None:
        """Runs a scenario on the deployment, healed and idle before and after."""

        async def whole() -> None:
            await self._heal()
            await scenario(self._deployment)
            await self._deployment.idle()

        self._runner.run(whole())

    async def _heal(self) -> None:
        dead = [engine for engine in self._deployment.engines if not engine.alive]
        await self._deployment.restart(*dead)


@pytest.fixture(scope="session")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with asyncio.Runner() as runner:
        deployment = Deployment(
            folder,
            model=model,
            engine_flags=["--drain-s", "0.3"],
            engine_env=poisoned_by_toxin("raise"),
        )
        runner.run(deployment.__aenter__())
        yield Shared(runner, deployment)
        runner.run(deployment.__aexit__(None, None, None))
