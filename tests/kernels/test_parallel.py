"""The thread pool computes every item of every job exactly once, and always comes back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import octavo.kernels

HEADERS = Path(octavo.kernels.__file__).parent
SOURCE = Path(__file__).with_name("parallel_stress.cpp")


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("parallel") / "stress"
    command = ["g++", "-O3", "-std=c++17", "-pthread", f"-I{HEADERS}", str(SOURCE), "-o"]
    subprocess.run([*command, str(program)], check=True)
    return program


@pytest.mark.parametrize("threads", [2, 3, 8], ids=["two", "three", "many on few cores"])
def test_every_item_of_every_job_is_computed_once(stress: Path, threads: int) -> None:
    done = subprocess.run(
        [stress, "3", str(threads)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stdout
