"""Blocks that are held: counted, kept from eviction, told when they are spoiled."""

from __future__ import annotations

import pytest

from octavo.engine.block_manager import BlockManager, IntegrityError
from octavo.engine.hash_index import NO_PARENT, HashIndex
from octavo.engine.held_blocks import HeldBlocks
from octavo.v1.block_hash import hash_root


def test_a_held_block_is_nobody_elses_until_every_hold_is_taken_back() -> None:
    blocks, index = BlockManager(3, 16), HashIndex()
    held, hash_ = HeldBlocks(blocks, index), hash_root(b"x" * 16)
    block = blocks.take()
    index.add(block, hash_, NO_PARENT)
    index.publish()
    blocks.keep(block)
    assert held.hold(hash_) == held.hold(hash_) == block
    assert held.hold(hash_root(b"nothing")) is None
    blocks.release(block)
    assert (len(held), blocks.num_available) == (1, 1)
    held.let_go(block)
    assert (len(held), blocks.num_available) == (1, 1)
    held.let_go(block)
    assert (len(held), blocks.num_available) == (0, 2)
    with pytest.raises(IntegrityError, match="more often than held"):
        held.let_go(block)


def test_only_held_blocks_are_spoiled_and_once() -> None:
    blocks, index = BlockManager(3, 16), HashIndex()
    held, hash_ = HeldBlocks(blocks, index), hash_root(b"x" * 16)
    first, second = blocks.take(), blocks.take()
    index.add(first, hash_, NO_PARENT)
    held.hold(hash_)
    for block in (first, second):
        held.spoil(block)
    assert held.drain_spoiled() == {first}
    assert held.drain_spoiled() == set()
    held.clear()
    assert (len(held), blocks.references(first)) == (0, 1)
