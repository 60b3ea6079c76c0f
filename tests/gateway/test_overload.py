import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.overload import (
    FREEING_S,
    HYSTERESIS,
    MAX_RETRY_S,
    MIN_RETRY_S,
    Level,
    Memory,
    MemoryReader,
    Places,
    Pressure,
    Surplus,
)

MB = 1024 * 1024
ENVIRON = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.mark.parametrize(
    ("share", "level"),
    [
        (0.0, Level.NORMAL),
        (0.849, Level.NORMAL),
        (0.85, Level.LOW_REFUSED),
        (0.92, Level.NEW_REFUSED),
        (0.95, Level.SHED),
        (3.0, Level.SHED),
    ],
)
def test_each_share_has_its_level_at_once(share: float, level: Level) -> None:
    assert Pressure().observe(share) == level


def test_a_level_ends_only_clearly_below_where_it_began() -> None:
    pressure = Pressure()
    assert pressure.observe(0.93) == Level.NEW_REFUSED
    assert pressure.observe(0.91) == Level.NEW_REFUSED
    assert pressure.observe(0.899) == Level.LOW_REFUSED
    assert pressure.observe(0.919) == Level.LOW_REFUSED
    assert pressure.observe(0.1) == Level.NORMAL


@given(st.floats(0.5, 1.0), st.lists(st.floats(0.0, 0.99), min_size=2))
def test_a_share_that_trembles_less_than_the_hysteresis_never_flaps(
    base: float, parts: list[float]
) -> None:
    pressure = Pressure()
    levels = [pressure.observe(base + part * HYSTERESIS) for part in parts]
    assert levels == sorted(levels)
    assert pressure.observe(0.5) == Level.NORMAL


def test_those_turned_away_come_back_as_fast_as_they_can_be_served() -> None:
    places = Places()
    for _ in range(200):
        places.ended(4.0)
    # 8 open for 4 s each: two places a second.
    waits = [places.next_s(100.0, num_open=8) for _ in range(20)]
    assert waits == pytest.approx([max(1.0, 0.5 * (i + 1)) for i in range(20)])


def test_promises_are_bounded_and_forgotten_with_time() -> None:
    places = Places()
    waits = [places.next_s(0.0, num_open=0) for _ in range(1000)]
    assert max(waits) == MAX_RETRY_S
    assert min(waits) >= MIN_RETRY_S
    assert places.next_s(1000.0, num_open=1000) == MIN_RETRY_S


def test_without_a_limit_nothing_is_ever_short() -> None:
    assert Memory(used_bytes=10**15, limit_bytes=0).share == 0.0
    assert Memory(used_bytes=3, limit_bytes=4).share == 0.75


def test_what_is_about_to_come_free_is_not_asked_for_again() -> None:
    def used(kb: int) -> Memory:
        return Memory(used_bytes=kb, limit_bytes=1000)

    surplus = Surplus()
    assert surplus.observe(used(960), 0.0) == 40
    surplus.given_up(50, 0.0)
    assert surplus.observe(used(960), 0.05) == 0
    assert surplus.observe(used(990), 0.1) == 20, "it grows all the same"
    surplus.given_up(20, 0.1)
    assert surplus.observe(used(930), 0.15) == 0, "60 have come free, 10 will"
    assert surplus.observe(used(950), 0.2) == 20
    assert surplus.observe(used(950), 0.1 + FREEING_S) == 30, "it did not come free"


class Machine:
    """The files that the kernel shows."""

    def __init__(self, root: Path, groups: str) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.proc.mkdir()
        self.cgroup.mkdir()
        (self.proc / "statm").write_text("900000 3000 1000 1 0 800 0\n")
        (self.proc / "cgroup").write_text(groups)

    def limit(self, path: str, text: str) -> None:
        file = self.cgroup / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def read(self, limit_bytes: int = 0) -> Memory:
        return MemoryReader(limit_bytes, proc=self.proc, cgroup=self.cgroup)()


V2 = "0::/pod/container\n"
V1 = "9:cpu,cpuacct:/x\n4:memory:/pod/container\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "setting", "limit"),
    [
        (V2, {}, 0, 0),
        (V2, {}, 7 * MB, 7 * MB),
        (V2, {"pod/container/memory.max": f"{5 * MB}"}, 0, 5 * MB),
        (V2, {"pod/container/memory.max": "max", "pod/memory.max": f"{4 * MB}"}, 0, 4 * MB),
        (V2, {"pod/container/memory.max": f"{5 * MB}"}, 3 * MB, 3 * MB),
        (V2, {"memory.max": f"{6 * MB}"}, 0, 6 * MB),
        (V1, {"memory/pod/container/memory.limit_in_bytes": f"{5 * MB}"}, 0, 5 * MB),
        (V1, {"memory/memory.limit_in_bytes": f"{6 * MB}"}, 0, 6 * MB),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, 0, 0),
        ("", {}, 0, 0),
    ],
    ids=[
        "v2 none", "setting alone", "v2 own", "v2 above", "setting below", "v2 in a container",
        "v1 own", "v1 in a container", "v1 none", "no group",
    ],
)  # fmt: skip
def test_the_smallest_limit_that_the_kernel_or_the_setting_has(
    tmp_path: Path, groups: str, files: dict[str, str], setting: int, limit: int
) -> None:
    machine = Machine(tmp_path, groups)
    for path, text in files.items():
        machine.limit(path, text)
    assert machine.read(setting).limit_bytes == limit


def test_memory_is_what_no_file_backs(tmp_path: Path) -> None:
    assert Machine(tmp_path, V2).read(1).used_bytes % 2000 == 0


def test_without_procfs_there_is_no_sample(tmp_path: Path) -> None:
    reader = MemoryReader(5 * MB, proc=tmp_path, cgroup=tmp_path)
    assert reader().share == 0.0


def test_memory_that_is_free_between_what_is_used_is_given_back() -> None:
    code = (
        "from octavo.gateway.overload import MemoryReader, trim\n"
        "read = MemoryReader(1)\n"
        "kept = [bytes(10_000) for _ in range(10_000)]\n"
        "del kept[::2], kept[1::2]\n"
        "before = read().used_bytes\n"
        "trim()\n"
        "print(before - read().used_bytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRON
    )
    assert int(done.stdout) > 20_000_000


def test_it_sees_this_process_grow() -> None:
    read = MemoryReader(1)
    before = read().used_bytes
    ballast = b"x" * (64 * MB)
    grown = read().used_bytes - before
    assert len(ballast) * 0.9 < grown < len(ballast) * 1.2
