"""A device that computes nothing more: the process ends with a status, its streams go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.faults.child_process import ROOT
from tests.faults.deployment import Deployment
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.workload import bodies


@pytest.mark.parametrize(
    ("said", "status"),
    [
        pytest.param("CUDA error: an illegal memory access was encountered", 71, id="failed"),
        pytest.param(
            "CUDA error: uncorrectable ECC error encountered",
            72,
            id="lost",
            marks=pytest.mark.faults,
        ),
    ],
)
def test_streams_of_an_engine_whose_device_fails(
    said: str, status: int, model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        broken = tmp_path / "broken"
        d = Deployment(tmp_path, model=model)
        victim = d.engines[0]
        victim.command[:2] = [
            str(ROOT / "tests/faults/broken_device.py"),
            str(broken),
            "octavo.engine",
        ]
        async with d:
            asked = bodies(12, 200)
            expected = await undisturbed(d, asked)

            async def fail() -> None:
                broken.write_text(said, encoding="utf-8")

            run = await disturbed(d, asked, expected, fail, after_s=0.2)
            assert run.wrong == []
            assert await victim.ended() == status
            assert said.removeprefix("CUDA error: ") in victim.log
            assert "request_failed" not in d.gateway.log, "no request is blamed"

    asyncio.run(scenario())
