"""The folder of blocks: what is damaged is never used, and is gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.engine.disk_format import DamagedBlockError, encode
from octavo.engine.disk_store import DiskStore
from octavo.v1.block_hash import BlockHash

NAMESPACE, OTHER = b"n" * 16, b"o" * 16
NONE, X, Y, Z = (BlockHash(b) for b in (b"", b"x" * 16, b"y" * 16, b"z" * 16))
PAGE = bytes(range(200))


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return opened(tmp_path)


def opened(folder: Path, namespace: bytes = NAMESPACE) -> DiskStore:
    store = DiskStore(folder, namespace, len(PAGE))
    store.open()
    return store


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def test_a_block_is_found_again_by_another_life(store: DiskStore, tmp_path: Path) -> None:
    store.write(X, NONE, PAGE)
    store.write(Y, X, PAGE[::-1])
    again = DiskStore(tmp_path, NAMESPACE, len(PAGE))
    assert sorted(again.open()) == [(X, NONE), (Y, X)]
    assert (again.read(X, NONE), again.read(Y, X)) == (PAGE, PAGE[::-1])


def test_the_least_recently_used_block_is_listed_first(store: DiskStore, tmp_path: Path) -> None:
    for i, hash_ in enumerate((X, Y, Z)):
        store.write(hash_, NONE, PAGE)
        os.utime(tmp_path / NAMESPACE.hex() / f"{hash_.hex()}-.kv", (i, i))
    store.read(X, NONE)
    assert store.open() == [(Y, NONE), (Z, NONE), (X, NONE)]


def test_only_its_user_reads_the_folder(store: DiskStore, tmp_path: Path) -> None:
    """K and V tell what the prompt was."""
    assert (tmp_path / NAMESPACE.hex()).stat().st_mode & 0o077 == 0


def test_another_model_has_another_folder(store: DiskStore, tmp_path: Path) -> None:
    store.write(X, NONE, PAGE)
    other = DiskStore(tmp_path, OTHER, len(PAGE))
    assert other.open() == []
    with pytest.raises(FileNotFoundError):
        other.read(X, NONE)
    assert store.read(X, NONE) == PAGE


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-7] ^= 4
    path.write_bytes(data)


def of_another_model(path: Path) -> None:
    path.write_bytes(encode(OTHER, X, NONE, PAGE))


@pytest.mark.parametrize("damage", [cut, empty, flip, of_another_model])
def test_a_damaged_file_is_not_read_and_is_removed(
    store: DiskStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store.write(X, NONE, PAGE)
    (path,) = files(tmp_path)
    damage(path)
    with pytest.raises(DamagedBlockError):
        store.read(X, NONE)
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", [cut, empty])
def test_a_file_of_the_wrong_size_is_removed_at_the_start(
    store: DiskStore, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    store.write(X, NONE, PAGE)
    damage(files(tmp_path)[0])
    assert store.open() == []
    assert files(tmp_path) == []


def test_files_that_are_not_ours_are_left_alone(store: DiskStore, tmp_path: Path) -> None:
    stranger = tmp_path / NAMESPACE.hex() / "README"
    stranger.write_text("mine")
    assert store.open() == []
    store.clear()
    assert files(tmp_path) == [stranger]


def test_blocks_are_removed_one_by_one_and_all_together(store: DiskStore, tmp_path: Path) -> None:
    for hash_ in (X, Y, Z):
        store.write(hash_, NONE, PAGE)
    store.remove(X, NONE)
    store.remove(X, NONE)
    assert len(files(tmp_path)) == 2
    store.clear()
    assert files(tmp_path) == []


def test_a_full_disk_leaves_nothing_of_the_block(
    store: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        store.write(X, NONE, PAGE)
    assert files(tmp_path) == []


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from octavo.engine.disk_store import DiskStore

store = DiskStore(Path(sys.argv[1]), b"n" * 16, 3_000_000)
store.open()
print("begins", flush=True)
for i in itertools.count():
    store.write((i % 50).to_bytes(16, "big"), b"", bytes([i % 256]) * 3_000_000)
"""


def test_a_kill_while_it_writes_leaves_whole_blocks_and_temporaries(tmp_path: Path) -> None:
    """Whatever is left: the next life reads what is listed, or knows that it is damaged."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, tmp_path], stdout=subprocess.PIPE, env=environ
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begins\n"
        while not files(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
    store = DiskStore(tmp_path, NAMESPACE, 3_000_000)
    listed = store.open()
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]
    assert len(files(tmp_path)) == len(listed)
    for hash_, parent in listed:
        page = store.read(hash_, parent)
        assert page == page[:1] * 3_000_000
