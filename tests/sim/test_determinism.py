"""One seed is one run, whatever the process, its hash seed, and what it ran before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _digests(seeds: list[int], hash_seed: str) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.sim", "--digests", "--no-shrink"]
    result = subprocess.run(
        [*command, "--seeds", ",".join(map(str, seeds))],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    lines = [line.split() for line in result.stdout.splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2}


def test_two_processes_have_the_same_trace() -> None:
    seeds = list(range(200, 210))
    one = _digests(seeds, "0")
    two = _digests(seeds[::-1], "4242")
    assert len(one) == len(seeds)
    assert one == two
