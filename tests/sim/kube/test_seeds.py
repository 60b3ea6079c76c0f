"""Sixty seeds hold every invariant, reach what there is, and are the same in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.sim.kube.script import FAULTS

ROOT = Path(__file__).parents[3]


def run(*arguments: str, hash_seed: str = "0") -> str:
    result = subprocess.run(
        [sys.executable, "-m", "tests.sim.kube", "--no-shrink", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2000:]
    return result.stdout


def test_seeds_hold_and_reach_what_there_is() -> None:
    counts = Counter[str]()
    for line in run("--seeds", "0-59", "--counts").splitlines():
        count, _, name = line.strip().partition(" ")
        if count.isdigit() and "." in name:
            counts[name] += int(count)
    wanted = {f"fault.{kind}" for kind in FAULTS} | {"fault.killed_after_write"}
    wanted |= {"end.killed", "end.stopped"}
    assert not sorted(wanted - counts.keys())


def test_two_processes_have_the_same_trace() -> None:
    assert _digests("0") == _digests("4242")


def _digests(hash_seed: str) -> list[str]:
    found = run("--seeds", "60-64", "--digests", hash_seed=hash_seed).splitlines()
    return [line for line in found if len(line.split()) == 2]
