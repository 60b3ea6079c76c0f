"""The wall clock of a process jumps by an hour: only monotonic time decides anything."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.faults.deployment import Deployment
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.workload import bodies

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
needs_faketime = pytest.mark.skipif(not LIBRARY.exists(), reason="faketime is not installed")
HOUR_S = 3600


def own_clock(file: Path) -> dict[str, str]:
    """Returns what makes a process believe the offset that a file holds."""
    file.write_text("+0\n", encoding="utf-8")
    return {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.faults
@needs_faketime
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S], ids=["forward", "back"])
@pytest.mark.parametrize("whose", ["gateway", "engine"])
def test_a_clock_that_jumps_changes_no_answer(
    whose: str, jump_s: int, model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        d = Deployment(tmp_path, model=model)
        clock = tmp_path / "clock"
        process = d.gateway if whose == "gateway" else d.engines[0]
        process.env.update(own_clock(clock))
        async with d:
            asked = bodies(12, 300)
            expected = await undisturbed(d, asked)

            async def jump() -> None:
                clock.write_text(f"{jump_s:+d}\n", encoding="utf-8")

            run = await disturbed(d, asked, expected, jump, after_s=0.1)
            assert run.wrong == []
            assert d.gateway.log.count("session_lost") == 0
            after = await disturbed(d, asked, expected, jump, after_s=0)
            assert after.wrong == []
            if whose == "gateway":
                assert abs(await _ahead_s(d) - jump_s) < HOUR_S / 2, "the clock did jump"

    asyncio.run(scenario())


async def _ahead_s(d: Deployment) -> float:
    """Returns how far the gateway's clock is before this process's."""
    answer = await d.ask(bodies(1, 1)[0])
    status, record = await d.get(f"/v1/requests/{answer.headers['X-Request-Id']}")
    assert status == 200, record
    return float(record["accepted_at"]) - time.time()
