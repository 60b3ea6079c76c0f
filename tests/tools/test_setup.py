from __future__ import annotations

import re
from pathlib import Path

from tools.setup import without_torch

LOCK = (Path(__file__).parents[2] / "requirements.txt").read_text(encoding="utf-8")


def pins(lock: str) -> set[str]:
    return {match.lower() for match in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)}


def test_other_build_of_torch_leaves_only_torch_and_its_libraries_out() -> None:
    rest, torch = without_torch(LOCK)
    gone = pins(LOCK) - pins(rest)
    assert re.fullmatch(r"torch==[\d.]+", torch)
    assert {"torch", "triton"} <= gone
    assert all(re.match(r"torch$|triton$|nvidia-|cuda-", name) for name in gone)


def test_every_kept_pin_keeps_its_hashes() -> None:
    rest, _ = without_torch(LOCK)
    blocks = [block for block in re.split(r"\n(?=[A-Za-z0-9])", rest) if "==" in block[:80]]
    assert len(blocks) > 50
    assert all("--hash=sha256:" in block for block in blocks)
