"""Pool and host tier as one, without requests."""

from __future__ import annotations

import pytest

from octavo.engine.block_manager import BlockId, BlockManager
from octavo.engine.hash_index import NO_PARENT, HashIndex
from octavo.engine.host_tier import HostTier
from octavo.engine.tiers import Tiers
from octavo.v1.block_hash import BlockHash

X, Y, Z = (BlockHash(bytes([i]) * 16) for i in (1, 2, 3))


class Pool:
    """Two blocks, and host slots."""

    def __init__(self, slots: int) -> None:
        self.blocks = BlockManager(3, 16)
        self.index = HashIndex()
        self.host = HostTier(slots)
        self.tiers = Tiers(self.blocks, self.index, self.host)

    def compute(self, hash_: BlockHash, *, publish: bool = True) -> BlockId:
        """A block that is computed, given up, and stays hittable."""
        block = self.tiers.take()
        self.index.add(block, hash_, NO_PARENT)
        self.blocks.keep(block)
        self.blocks.release(block)
        if publish:
            self.end_step()
        return block

    def end_step(self) -> None:
        self.index.publish()
        self.host.commit()


@pytest.fixture
def pool() -> Pool:
    return Pool(2)


def test_what_is_evicted_goes_to_the_host_and_comes_back(pool: Pool) -> None:
    """Semantics 14, 15."""
    first = pool.compute(X)
    pool.compute(Y)
    pool.compute(Z)
    assert pool.index.find(X) is None
    slots = pool.tiers.hold_hits([X, Y])
    assert len(slots) == 1, "Y is in the pool, not in the host"
    block = pool.tiers.restore(slots[0])
    assert pool.host.restores() == [(slots[0], block)]
    assert pool.index.find(X) == block
    assert first in (1, 2)


def test_content_that_never_came_is_not_saved(pool: Pool) -> None:
    pool.compute(X, publish=False)
    pool.tiers.take()
    pool.tiers.take()
    assert pool.host.offloads() == []


def test_a_block_that_is_given_up_before_the_step_began_is_not_restored(pool: Pool) -> None:
    """Its new owner would find the old content in it."""
    for hash_ in (X, Y, Z):
        pool.compute(hash_)
    (slot,) = pool.tiers.hold_hits([X])
    block = pool.tiers.restore(slot)
    pool.blocks.release(block)
    assert block in (pool.tiers.take(), pool.tiers.take())
    assert pool.host.restores() == []
    assert not pool.host.has_image(block)


def test_moves_between_tiers_are_told_once(pool: Pool) -> None:
    pool.compute(X)
    pool.compute(Y)
    assert pool.tiers.drain_events() == ([(X, NO_PARENT), (Y, NO_PARENT)], [], False)
    pool.compute(Z)
    assert pool.tiers.drain_events() == ([(Z, NO_PARENT)], [], False)
    assert {h for h, _ in pool.tiers.snapshot()} == {X, Y, Z}
    pool.host.forget(X)
    assert pool.tiers.drain_events() == ([], [X], False)


def test_a_failed_step_loses_what_it_was_saving_and_says_so(pool: Pool) -> None:
    pool.compute(X)
    pool.compute(Y)
    pool.tiers.drain_events()
    pool.tiers.take()
    pool.index.revoke()
    pool.host.revoke()
    assert pool.tiers.drain_events() == ([], [X], False)


def test_clearing_clears_all_tiers(pool: Pool) -> None:
    for hash_ in (X, Y, Z):
        pool.compute(hash_)
    pool.tiers.clear()
    assert pool.tiers.snapshot() == []
    assert pool.tiers.drain_events() == ([], [], True)
    pool.blocks.check_integrity()


def test_without_a_host_the_pool_is_all_there_is() -> None:
    pool = Pool(0)
    for hash_ in (X, Y, Z):
        pool.compute(hash_)
    assert pool.tiers.hold_hits([X]) == []
    assert pool.tiers.drain_events() == ([(Y, NO_PARENT), (Z, NO_PARENT)], [], False)
