"""Host memory below the pool: what is kept, swapped, held for a step, and taken back."""

from __future__ import annotations

import pytest
from tests.engine.fake_disk import FakeDisk

from octavo.engine.block_manager import BlockId, IntegrityError
from octavo.engine.disk_tier import DiskTier
from octavo.engine.hash_index import NO_PARENT
from octavo.engine.host_tier import Entry, HostTier
from octavo.engine.request import RequestId
from octavo.v1.block_hash import BlockHash

A, B, C = RequestId(1), RequestId(2), RequestId(3)


def block(number: int) -> BlockId:
    return BlockId(number)


def entry(number: int) -> Entry:
    return BlockHash(bytes([number]) * 16), NO_PARENT


def save(tier: HostTier, *numbers: int) -> None:
    """Saves blocks whose hashes have their numbers, in one step."""
    for number in numbers:
        tier.save(block(number), *entry(number))
    tier.check_integrity()
    tier.commit()
    tier.check_integrity()


def held(tier: HostTier) -> set[int]:
    return {hash_[0] for hash_, _ in tier.snapshot()}


def test_without_slots_nothing_is_ever_kept_or_swapped() -> None:
    tier = HostTier(0)
    tier.save(block(1), *entry(1))
    assert not tier.swap_out({A: [(block(1), entry(1))]})
    assert (tier.offloads(), tier.restores(), tier.find(entry(1)[0])) == ([], [], None)
    tier.check_integrity()


def test_an_evicted_block_is_found_at_once_and_told_when_the_step_succeeded() -> None:
    tier = HostTier(2)
    tier.save(block(7), *entry(7))
    assert tier.find(entry(7)[0]) == tier.offloads()[0][1]
    assert (tier.snapshot(), tier.parent_of(entry(7)[0])) == ([], None)
    tier.commit()
    assert held(tier) == {7}
    assert tier.offloads() == []


def test_what_is_here_is_not_copied_again() -> None:
    tier = HostTier(4)
    save(tier, 7)
    tier.save(block(9), *entry(7))
    assert tier.offloads() == []


def test_least_recently_used_goes_first_and_a_hit_counts_as_use() -> None:
    tier = HostTier(2)
    save(tier, 1, 2)
    slot = tier.find(entry(1)[0])
    assert slot is not None
    tier.hold(slot)
    tier.commit()
    save(tier, 3)
    assert held(tier) == {1, 3}


def test_one_step_never_uses_a_slot_twice() -> None:
    """Semantics 19: what is being copied is not given to anybody else."""
    tier = HostTier(2)
    for number in (1, 2, 3):
        tier.save(block(number), *entry(number))
    assert len({slot for _, slot in tier.offloads()}) == len(tier.offloads()) == 2
    tier.check_integrity()


def test_a_slot_that_the_step_reads_is_not_evicted_by_it() -> None:
    """Semantics 19."""
    tier = HostTier(1)
    save(tier, 1)
    slot = tier.find(entry(1)[0])
    assert slot is not None
    tier.hold(slot)
    tier.restore(slot, block(5))
    tier.save(block(2), *entry(2))
    assert (tier.offloads(), tier.restores()) == ([], [(slot, 5)])
    tier.commit()
    save(tier, 2)
    assert held(tier) == {2}


def test_a_failed_step_keeps_nothing_that_it_copied() -> None:
    tier = HostTier(4)
    save(tier, 1)
    tier.save(block(2), *entry(2))
    assert tier.swap_out({A: [(block(3), entry(3)), (block(4), None)]})
    assert tier.revoke() == [A]
    tier.check_integrity()
    assert held(tier) == {1}
    assert not tier.is_swapped(A)
    assert tier.counts().used == 0


def test_a_swap_of_an_earlier_step_outlives_a_failed_one() -> None:
    tier = HostTier(2)
    assert tier.swap_out({A: [(block(1), None)]})
    tier.commit()
    tier.save(block(2), *entry(2))
    assert tier.revoke() == []
    assert tier.is_swapped(A)


def test_requests_that_share_a_block_share_its_slot_and_it_is_copied_once() -> None:
    tier = HostTier(3)
    shared, own = (block(1), None), (block(2), None)
    assert tier.swap_out({A: [shared, own], B: [shared]})
    assert tier.swap_out({C: [shared]})
    assert len(tier.offloads()) == 2
    tier.commit()
    assert tier.num_swapped([A, B, C]) == 2
    first, second, third = (tier.take_swapped(i) for i in (A, B, C))
    assert first[0] == second[0] == third[0]
    tier.check_integrity()
    tier.commit()
    assert tier.counts().used == 0


def test_a_hittable_block_and_a_swapped_one_share_a_slot_that_stays_after_the_swap() -> None:
    tier = HostTier(2)
    save(tier, 1)
    assert tier.swap_out({A: [(block(1), entry(1)), (block(2), entry(2))]})
    assert [b for b, _ in tier.offloads()] == [2]
    tier.commit()
    tier.discard(A)
    tier.check_integrity()
    assert held(tier) == {1, 2}


def test_a_swap_without_room_changes_nothing() -> None:
    tier = HostTier(2)
    save(tier, 1)
    assert tier.swap_out({A: [(block(5), None)]})
    assert not tier.swap_out({B: [(block(1), entry(1)), (block(6), None)]})
    tier.check_integrity()
    assert held(tier) == {1}
    assert not tier.is_swapped(B)


def test_a_swapped_request_keeps_its_slots_whatever_comes() -> None:
    tier = HostTier(2)
    assert tier.swap_out({A: [(block(1), None)]})
    tier.commit()
    for number in range(2, 9):
        save(tier, number)
    assert held(tier) == {8}
    (slot,) = tier.take_swapped(A)
    assert slot not in {tier.find(entry(8)[0])}


def test_a_block_that_comes_back_in_this_step_is_swapped_by_its_slot() -> None:
    """Its own content is not there yet when the offloads are done."""
    tier = HostTier(2)
    save(tier, 1)
    slot = tier.find(entry(1)[0])
    assert slot is not None
    tier.hold(slot)
    tier.restore(slot, block(9))
    assert tier.has_image(block(9))
    assert tier.swap_out({A: [(block(9), entry(1))]})
    assert tier.offloads() == []
    assert tier.take_swapped(A) == [slot]


def test_a_block_with_a_new_owner_is_no_target_and_no_image() -> None:
    tier = HostTier(2)
    save(tier, 1)
    slot = tier.find(entry(1)[0])
    assert slot is not None
    tier.hold(slot)
    tier.restore(slot, block(9))
    tier.reuse(block(9))
    assert not tier.has_image(block(9))
    assert tier.restores() == []


def test_forgotten_content_is_not_found_but_stays_for_whom_it_is_swapped() -> None:
    tier = HostTier(2)
    assert tier.swap_out({A: [(block(1), entry(1))]})
    tier.commit()
    tier.forget(entry(1)[0])
    tier.forget(entry(2)[0])
    tier.check_integrity()
    assert tier.find(entry(1)[0]) is None
    (slot,) = tier.take_swapped(A)
    assert tier.entry(slot) is None


class Pages:
    """Slots that hold bytes."""

    def __init__(self) -> None:
        self.slots: dict[int, bytes] = {}

    def read_page(self, slot: int) -> bytes:
        return self.slots.get(slot, b"")

    def write_page(self, slot: int, page: bytes) -> None:
        self.slots[slot] = page


def test_what_the_disk_has_brought_is_here_whatever_becomes_of_the_next_step() -> None:
    io, pages = FakeDisk(), Pages()
    io.files[entry(7)[0]] = (NO_PARENT, b"seven")
    disk = DiskTier(io, 4, [entry(7)])
    tier = HostTier(2, disk=disk, pages=pages)
    tier.load(A, [entry(7)[0], entry(8)[0]], now=0.0)
    assert disk.is_loading(A, 0.0)
    io.work()
    tier.poll()
    tier.check_integrity()
    assert not disk.is_loading(A, 0.0)
    tier.revoke()
    slot = tier.find(entry(7)[0])
    assert slot is not None
    assert pages.slots == {slot: b"seven"}


def test_no_more_is_loaded_than_there_are_slots_for() -> None:
    io = FakeDisk()
    tier = HostTier(2, disk=DiskTier(io, 9, [entry(i) for i in range(5)]), pages=Pages())
    assert tier.swap_out({B: [(block(1), None)]})
    tier.load(A, [entry(i)[0] for i in range(5)], now=0.0)
    assert [job[2] for job in io.reads] == [entry(0)[0]]


def test_changes_name_what_came_and_went() -> None:
    tier = HostTier(1)
    save(tier, 1)
    assert tier.drain_changes() == [entry(1)[0]]
    save(tier, 2)
    assert set(tier.drain_changes()) == {entry(1)[0], entry(2)[0]}
    assert tier.drain_changes() == []


def test_clearing_forgets_everything_but_not_below_a_swapped_request() -> None:
    tier = HostTier(2)
    save(tier, 1)
    tier.save(block(2), *entry(2))
    tier.clear()
    tier.check_integrity()
    assert (held(tier), tier.offloads(), tier.counts().kept) == (set(), [], 0)
    assert tier.swap_out({A: [(block(1), None)]})
    with pytest.raises(IntegrityError, match="swapped out"):
        tier.clear()


def test_a_lost_reference_is_noticed() -> None:
    tier = HostTier(2)
    assert tier.swap_out({A: [(block(1), None)]})
    tier._pinned.clear()
    with pytest.raises(IntegrityError, match="references"):
        tier.check_integrity()
