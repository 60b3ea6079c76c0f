from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from octavo.engine.block_manager import NULL_BLOCK, BlockId, BlockManager, IntegrityError


@pytest.fixture
def blocks() -> BlockManager:
    return BlockManager(num_blocks=6, block_tokens=16)


def take(blocks: BlockManager, count: int) -> list[BlockId]:
    return [blocks.take() for _ in range(count)]


def test_11_null_block_is_never_taken(blocks: BlockManager) -> None:
    """Semantics 11."""
    assert blocks.num_allocatable == blocks.num_available == 5
    assert sorted(take(blocks, 5)) == [1, 2, 3, 4, 5]
    assert blocks.num_available == 0
    with pytest.raises(IntegrityError, match="no block is free"):
        blocks.take()


def test_null_block_cannot_be_shared(blocks: BlockManager) -> None:
    with pytest.raises(IntegrityError, match="null block"):
        blocks.share(NULL_BLOCK)


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_tokens_are_rounded_up_to_blocks(
    blocks: BlockManager, num_tokens: int, expected: int
) -> None:
    assert blocks.blocks_for(num_tokens) == expected


def test_12_sharing_a_free_block_takes_it_out_of_the_middle_of_the_queue(
    blocks: BlockManager,
) -> None:
    """Semantics 12."""
    blocks.share(BlockId(3))
    assert blocks.free_queue() == [1, 2, 4, 5]
    blocks.share(BlockId(3))
    assert blocks.references(BlockId(3)) == 2
    blocks.release(BlockId(3))
    assert blocks.num_available == 4
    blocks.release(BlockId(3))
    assert blocks.num_available == 5
    blocks.check_integrity()


def test_14_worthless_blocks_are_reused_first_and_kept_ones_last(blocks: BlockManager) -> None:
    """Semantics 14: without content to the front, last in first out; with content to the back."""
    taken = take(blocks, 4)
    blocks.keep(taken[0])
    blocks.keep(taken[1])
    for block in taken:
        blocks.release(block)
    assert blocks.free_queue() == [taken[3], taken[2], 5, taken[0], taken[1]]
    assert (blocks.num_free, blocks.num_kept_free, blocks.num_used) == (3, 2, 0)
    blocks.check_integrity()


def test_taking_a_kept_block_drops_the_mark(blocks: BlockManager) -> None:
    (block,) = take(blocks, 1)
    blocks.keep(block)
    blocks.release(block)
    assert block in take(blocks, 5)
    assert not blocks.is_kept(block)
    blocks.release(block)
    assert (blocks.num_free, blocks.num_kept_free) == (1, 0)


def test_a_free_block_whose_content_is_forgotten_moves_to_the_front(blocks: BlockManager) -> None:
    taken = take(blocks, 5)
    for block in taken:
        blocks.keep(block)
        blocks.release(block)
    blocks.forget(taken[2])
    assert blocks.free_queue()[0] == taken[2]
    assert (blocks.num_free, blocks.num_kept_free) == (1, 4)
    blocks.check_integrity()


def test_a_block_cannot_be_released_too_often(blocks: BlockManager) -> None:
    (block,) = take(blocks, 1)
    blocks.release(block)
    with pytest.raises(IntegrityError, match="more often"):
        blocks.release(block)


def test_only_blocks_in_use_can_be_marked(blocks: BlockManager) -> None:
    with pytest.raises(IntegrityError, match="free"):
        blocks.keep(BlockId(1))


@pytest.mark.parametrize(("num_blocks", "block_tokens"), [(0, 16), (8, 0)])
def test_a_pool_without_null_block_or_room_in_blocks_is_refused(
    num_blocks: int, block_tokens: int
) -> None:
    with pytest.raises(IntegrityError):
        BlockManager(num_blocks, block_tokens)


def test_a_pool_of_the_null_block_alone_has_nothing_to_give() -> None:
    blocks = BlockManager(1, 16)
    blocks.check_integrity()
    assert (blocks.num_available, blocks.num_used) == (0, 0)
    with pytest.raises(IntegrityError, match="no block is free"):
        blocks.take()


def lose_a_reference(blocks: BlockManager) -> None:
    blocks._references[blocks.take()] = 0


def use_a_free_block(blocks: BlockManager) -> None:
    blocks._references[2] = 1


def miscount(blocks: BlockManager) -> None:
    blocks._num_available -= 1


def miscount_kept(blocks: BlockManager) -> None:
    blocks._kept[2] = 1


def break_a_link(blocks: BlockManager) -> None:
    blocks._previous[2] = 4


def close_a_cycle(blocks: BlockManager) -> None:
    blocks._next[2] = 1


def use_the_null_block(blocks: BlockManager) -> None:
    blocks._references[NULL_BLOCK] = 1


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_reference,
        use_a_free_block,
        miscount,
        miscount_kept,
        break_a_link,
        close_a_cycle,
        use_the_null_block,
    ],
)
def test_17_check_integrity_notices(
    blocks: BlockManager, damage: Callable[[BlockManager], None]
) -> None:
    """Semantics 17."""
    blocks.check_integrity()
    damage(blocks)
    with pytest.raises(IntegrityError):
        blocks.check_integrity()


def test_checks_stay_on_without_asserts() -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from octavo.engine.block_manager import BlockManager, IntegrityError\n"
        "blocks = BlockManager(4, 16)\n"
        "blocks._num_available = 9\n"
        "try:\n    blocks.check_integrity()\n"
        "except IntegrityError:\n    sys.exit(17)\n"
    )
    assert subprocess.run([sys.executable, "-O", "-c", program], check=False).returncode == 17
