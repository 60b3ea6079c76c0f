"""The disk's thread over a real folder."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import structlog

from octavo.engine.disk_store import DiskStore
from octavo.engine.disk_thread import DiskThread
from octavo.v1.block_hash import BlockHash

NONE, X, Y = (BlockHash(b) for b in (b"", b"x" * 16, b"y" * 16))
PAGE = bytes(range(64))


class Disk:
    """A thread that has not started; `finish` lets it do all that is queued."""

    def __init__(self, folder: Path, limit: int = 8) -> None:
        self.store = DiskStore(folder, b"n" * 16, len(PAGE))
        self.store.open()
        self.woken = threading.Semaphore(0)
        self.thread = DiskThread(self.store, self.woken.release, limit=limit)

    def finish(self) -> dict[int, tuple[bool, bytes]]:
        self.thread.start()
        self.thread.close()
        return {done.ticket: (done.ok, done.page) for done in self.thread.drain()}


def test_what_is_written_can_be_read_and_each_answer_wakes(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.thread.start()
    disk.thread.write(1, X, NONE, PAGE)
    disk.woken.acquire()
    disk.thread.read(2, X, NONE)
    disk.woken.acquire()
    disk.thread.close()
    answers = disk.thread.drain()
    assert [(d.ticket, d.hash_, d.ok) for d in answers] == [(1, X, True), (2, X, True)]
    assert answers[1].page == PAGE


def test_reads_overtake_writes_and_removals_keep_their_place(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.store.write(Y, NONE, PAGE)
    disk.thread.write(1, X, NONE, PAGE)
    disk.thread.remove(X, NONE)
    disk.thread.remove(Y, NONE)
    disk.thread.read(2, Y, NONE)
    assert disk.finish() == {1: (True, b""), 2: (True, PAGE)}
    assert disk.store.open() == []


def test_the_queue_is_bounded_but_for_removals(tmp_path: Path) -> None:
    disk = Disk(tmp_path, limit=2)
    disk.thread.remove(X, NONE)
    assert disk.thread.has_room()
    disk.thread.read(1, X, NONE)
    assert not disk.thread.has_room()
    disk.thread.remove(Y, NONE)
    disk.finish()
    assert disk.thread.has_room()


def test_a_clear_forgets_what_is_queued_and_removes_the_rest(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.store.write(Y, NONE, PAGE)
    disk.thread.write(1, X, NONE, PAGE)
    disk.thread.read(2, Y, NONE)
    disk.thread.clear()
    assert disk.finish() == {}
    assert disk.store.open() == []


def test_failures_are_answers_and_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.store, "write", full)
    disk.thread.write(1, X, NONE, PAGE)
    disk.thread.write(2, Y, NONE, PAGE)
    disk.thread.remove(X, NONE)
    with structlog.testing.capture_logs() as logs:
        answers = disk.finish()
    assert answers == {1: (False, b""), 2: (False, b"")}
    assert [line["event"] for line in logs] == ["disk_cache_failed"]


def test_a_damaged_block_is_a_failed_read(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    disk.store.write(X, NONE, PAGE)
    (path,) = tmp_path.rglob("*.kv")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    disk.thread.read(1, X, NONE)
    assert disk.finish() == {1: (False, b"")}
    assert not path.exists()
