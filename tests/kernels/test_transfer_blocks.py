from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.tensors import random

from octavo.kernels.dispatch import Implementation
from octavo.kernels.transfer_blocks import transfer_blocks
from octavo.kernels.transfer_blocks.runs import contiguous

SHAPE = (2, 2, 3, 64)
IMPLEMENTATIONS = ["native", "reference"]


@pytest.mark.parametrize("force", IMPLEMENTATIONS)
def test_the_blocks_named_arrive_and_nothing_else_changes(force: Implementation) -> None:
    source, target = (
        random(6, *SHAPE, dtype=torch.bfloat16),
        random(9, *SHAPE, dtype=torch.bfloat16),
    )
    before, untouched = target.clone(), source.clone()
    transfer_blocks(source, target, [(1, 4), (2, 5), (5, 1), (3, 8)], force=force)
    assert torch.equal(source, untouched)
    for i in range(9):
        origin = {4: 1, 5: 2, 1: 5, 8: 3}.get(i)
        assert torch.equal(target[i], before[i] if origin is None else source[origin])


@pytest.mark.parametrize("force", IMPLEMENTATIONS)
def test_no_pairs_move_nothing(force: Implementation) -> None:
    source, target = random(2, *SHAPE, dtype=torch.float32), random(2, *SHAPE, dtype=torch.float32)
    before = target.clone()
    transfer_blocks(source, target, [], force=force)
    assert torch.equal(target, before)


@pytest.mark.parametrize("pair", [(2, 0), (0, 2), (-1, 0), (0, -1)])
def test_a_block_outside_a_pool_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(IndexError):
        transfer_blocks(
            random(2, *SHAPE, dtype=torch.float32), random(2, *SHAPE, dtype=torch.float32), [pair]
        )


@settings(max_examples=200)
@given(st.data())
def test_runs_move_what_single_copies_move(data: st.DataObject) -> None:
    targets = data.draw(st.lists(st.integers(0, 11), unique=True, max_size=12))
    pairs = [(data.draw(st.integers(0, 11)), target) for target in targets]
    source = torch.arange(12.0).reshape(12, 1)
    expected, got = torch.zeros(12, 1), torch.zeros(12, 1)
    transfer_blocks(source, expected, pairs, force="reference")
    transfer_blocks(source, got, pairs)
    assert torch.equal(got, expected)
    moved = [(f + i, t + i) for f, t, n in contiguous(pairs) for i in range(n)]
    assert sorted(moved) == sorted(pairs)


def test_neighbours_are_one_run() -> None:
    assert list(contiguous([(7, 3), (5, 1), (6, 2), (2, 9), (3, 9 + 2)])) == [
        (2, 9, 1),
        (3, 11, 1),
        (5, 1, 3),
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no device")
def test_a_round_trip_over_pinned_memory() -> None:
    device = random(8, *SHAPE, dtype=torch.float32).cuda()
    host = torch.zeros(8, *SHAPE, pin_memory=True)
    back = torch.zeros_like(device)
    transfer_blocks(device, host, [(i, 7 - i) for i in range(8)])
    transfer_blocks(host, back, [(7 - i, i) for i in range(8)])
    assert torch.equal(back, device)
