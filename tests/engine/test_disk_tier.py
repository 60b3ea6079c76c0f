"""The index of the disk, without a disk."""

from __future__ import annotations

from functools import partial

import pytest
from tests.engine.fake_disk import FakeDisk

from octavo.engine.disk_tier import LOAD_S, DiskTier
from octavo.engine.hash_index import NO_PARENT
from octavo.engine.request import RequestId
from octavo.v1.block_hash import BlockHash

A, B = RequestId(1), RequestId(2)


def name(number: int) -> BlockHash:
    return BlockHash(bytes([number]) * 16)


class Disk:
    """A tier with its fake."""

    def __init__(self, capacity: int = 4, limit: int = 1000, failing: tuple[int, ...] = ()) -> None:
        self.io = FakeDisk(limit, lambda job: job in failing)
        self.tier = DiskTier(self.io, capacity)

    def save(self, *numbers: int) -> None:
        for number in numbers:
            self.tier.save(name(number), NO_PARENT, partial(bytes, [number]))
            self.tier.check_integrity()

    def work(self) -> list[int]:
        """Does all jobs; returns the numbers of the blocks that were read."""
        self.io.work()
        pages = self.tier.poll()
        self.tier.check_integrity()
        assert all(page == hash_[:1] for hash_, _, page in pages)
        return [hash_[0] for hash_, _, _ in pages]

    def held(self) -> list[int]:
        return [hash_[0] for hash_, _ in self.tier.snapshot()]


def test_a_block_is_held_when_it_has_been_written() -> None:
    disk = Disk()
    disk.save(1)
    assert (disk.held(), disk.tier.drain_changes()) == ([], [])
    disk.work()
    assert (disk.held(), disk.tier.drain_changes()) == ([1], [name(1)])
    assert disk.tier.parent_of(name(1)) == NO_PARENT


def test_a_block_that_is_here_or_on_its_way_is_not_copied_again() -> None:
    disk = Disk()
    disk.save(1)
    disk.save(1)
    disk.work()
    disk.save(1)
    assert len(disk.io.writes) == 0
    assert disk.tier.num_written == 1


def test_the_bound_holds_and_the_least_recently_used_goes() -> None:
    disk = Disk(capacity=2)
    disk.save(1, 2)
    disk.work()
    disk.save(1)
    disk.save(3)
    disk.work()
    assert disk.held() == [1, 3]
    assert disk.io.files.keys() == {name(1), name(3)}


def test_more_than_fits_in_the_queue_or_on_the_disk_is_dropped() -> None:
    disk = Disk(capacity=2)
    disk.save(1, 2, 3)
    disk.work()
    assert disk.held() == [1, 2]
    queue = Disk(limit=1)
    queue.save(1, 2)
    queue.work()
    assert (queue.held(), queue.tier.num_failed) == ([1], 1)


def test_blocks_of_an_earlier_life_are_held_and_told_within_the_bound() -> None:
    io = FakeDisk()
    tier = DiskTier(io, 2, [(name(i), NO_PARENT) for i in (1, 2, 3)])
    assert [hash_ for hash_, _ in tier.snapshot()] == [name(2), name(3)]
    assert {name(2), name(3)} <= set(tier.drain_changes())
    assert [job[0] for job in io.writes] == ["remove"]


def test_a_request_waits_until_its_blocks_are_read() -> None:
    disk = Disk()
    disk.save(1, 2, 3)
    disk.work()
    disk.tier.ask(A, [name(1), name(2)], now=0.0)
    disk.tier.ask(B, [name(2), name(3)], now=0.0)
    assert len(disk.io.reads) == 3, "the block that both want is read once"
    disk.io.work(2)
    disk.tier.poll()
    assert (disk.tier.is_loading(A, 0.1), disk.tier.is_loading(B, 0.1)) == (False, True)
    assert disk.work() == [3]
    assert not disk.tier.is_loading(B, 0.1)


def test_who_asks_for_nothing_does_not_wait() -> None:
    disk = Disk()
    disk.tier.ask(A, [], now=0.0)
    assert disk.tier.has_asked(A)
    assert not disk.tier.is_loading(A, 0.0)
    disk.tier.discard(A)
    disk.tier.discard(B)
    assert not disk.tier.has_asked(A)


def test_a_disk_that_hangs_is_not_waited_for() -> None:
    disk = Disk()
    disk.save(1)
    disk.work()
    disk.tier.ask(A, [name(1)], now=5.0)
    assert disk.tier.is_loading(A, 5.0 + 0.9 * LOAD_S)
    assert not disk.tier.is_loading(A, 5.0 + LOAD_S)


def test_what_cannot_be_read_is_forgotten_and_ends_the_wait() -> None:
    disk = Disk(failing=(1,))
    disk.save(1)
    disk.work()
    disk.tier.drain_changes()
    disk.tier.ask(A, [name(1)], now=0.0)
    assert disk.work() == []
    assert not disk.tier.is_loading(A, 0.0)
    assert (disk.held(), disk.tier.drain_changes()) == ([], [name(1)])


def test_a_write_that_fails_leaves_nothing() -> None:
    disk = Disk(failing=(0,))
    disk.save(1)
    disk.work()
    assert (disk.held(), disk.tier.num_failed, disk.tier.drain_changes()) == ([], 1, [])


@pytest.mark.parametrize("worked", [0, 1])
def test_forgotten_content_never_comes_back(worked: int) -> None:
    """Also if it is just being written, and even if the same name is written again meanwhile."""
    disk = Disk()
    disk.save(1)
    disk.io.work(worked)
    disk.tier.forget(name(1))
    disk.tier.save(name(1), NO_PARENT, lambda: bytes([1]))
    disk.io.work(1)
    disk.tier.poll()
    assert disk.held() == []
    disk.work()
    assert disk.held() == [1]
    assert name(1) in disk.io.files


def test_a_read_that_was_under_way_when_its_block_was_forgotten_brings_nothing() -> None:
    disk = Disk()
    disk.save(1)
    disk.work()
    disk.tier.ask(A, [name(1)], now=0.0)
    disk.io.work(1)
    disk.tier.forget(name(1))
    assert disk.work() == []
    assert not disk.tier.is_loading(A, 0.0)


def test_clearing_removes_everything() -> None:
    disk = Disk()
    disk.save(1)
    disk.work()
    disk.save(2)
    disk.tier.ask(A, [name(1)], now=0.0)
    disk.tier.clear()
    assert disk.work() == []
    assert (disk.held(), disk.io.files) == ([], {})
    assert not disk.tier.is_loading(A, 0.0)
