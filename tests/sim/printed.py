"""What a simulation prints, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(module: str, *arguments: str, hash_seed: str = "0") -> list[str]:
    """Returns the lines of a run that ends well."""
    result = subprocess.run(
        [sys.executable, "-m", module, "--no-shrink", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2000:]
    return result.stdout.splitlines()


def counts(module: str, *arguments: str) -> Counter[str]:
    """Returns how often things were reached."""
    found = Counter[str]()
    for line in printed(module, "--counts", *arguments):
        count, _, name = line.strip().partition(" ")
        if count.isdigit() and "." in name:
            found[name] += int(count)
    return found


def digests(module: str, seeds: Sequence[int], hash_seed: str) -> dict[str, str]:
    """Returns the hash of each seed's trace."""
    wanted = ",".join(map(str, seeds))
    found = printed(module, "--digests", "--seeds", wanted, hash_seed=hash_seed)
    lines = [line.split() for line in found]
    return {words[0]: words[1] for words in lines if len(words) == 2}
