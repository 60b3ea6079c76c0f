from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import DTYPES, assert_close, random

from octavo.kernels import kv_pool
from octavo.kernels.dispatch import Implementation
from octavo.kernels.rope_kv_write import rope_kv_write

HEADS, KV_HEADS = 6, 2


def write(
    force: Implementation,
    *,
    tokens: int,
    head_dim: int,
    dtype: torch.dtype,
    block_tokens: int = 16,
    normed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns qkv and the pool after the write; every fifth token has no slot."""
    qkv = random(tokens, (HEADS + 2 * KV_HEADS) * head_dim, dtype=torch.float32)
    num_blocks = tokens // block_tokens + 2
    pool = torch.full((num_blocks, 3, 2, KV_HEADS, block_tokens * head_dim), torch.nan, dtype=dtype)
    slots = torch.randperm(num_blocks * block_tokens, generator=torch.Generator().manual_seed(3))[
        :tokens
    ]
    slots[::5] = -1
    weights = [random(head_dim, dtype=dtype, seed=seed) if normed else None for seed in (1, 2)]
    rope_kv_write(
        qkv,
        pool,
        1,
        rope_table=random(200, head_dim, dtype=torch.float32, seed=4),
        positions=torch.arange(tokens).flip(0),
        slots=slots,
        q_norm=weights[0],
        k_norm=weights[1],
        eps=1e-6,
        force=force,
    )
    return qkv, pool


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("block_tokens", [16, 48])
@pytest.mark.parametrize("tokens", [1, 100])
def test_native_equals_reference(
    tokens: int, block_tokens: int, head_dim: int, normed: bool, dtype: torch.dtype
) -> None:
    ours, expected = (
        write(
            force,
            tokens=tokens,
            head_dim=head_dim,
            dtype=dtype,
            block_tokens=block_tokens,
            normed=normed,
        )
        for force in ("native", "reference")
    )
    assert_close(ours[0], expected[0])
    # What was not written is NaN in both.
    assert torch.equal(ours[1].isnan(), expected[1].isnan())
    assert_close(ours[1].nan_to_num(), expected[1].nan_to_num())
    values = [kv_pool.values(pool, 1, head_dim).nan_to_num() for _, pool in (ours, expected)]
    assert torch.equal(*values)


def test_a_rotation_by_a_quarter_turn_swaps_the_halves() -> None:
    qkv = torch.arange(3 * 16, dtype=torch.float32).reshape(1, -1)
    pool = torch.full((1, 1, 2, 1, 16 * 16), torch.nan)
    rope_kv_write(
        qkv,
        pool,
        0,
        rope_table=torch.tensor([[0.0] * 8 + [1.0] * 8]),
        positions=torch.tensor([0]),
        slots=torch.tensor([5]),
        force="native",
    )
    assert qkv[0, :16].tolist() == [*(-x for x in range(8, 16)), *range(8)]
    assert kv_pool.keys(pool, 0, 16)[0, 0, 5].tolist() == [
        *(-x for x in range(24, 32)),
        *range(16, 24),
    ]
    assert kv_pool.values(pool, 0, 16)[0, 0, 5].tolist() == list(range(32, 48))
    assert kv_pool.values(pool, 0, 16)[0, 0, 4].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_does_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    table = random(200, 64, dtype=torch.float32, seed=4)
    content = random(100, (HEADS + 2 * KV_HEADS) * 64, dtype=torch.float32)
    positions = torch.arange(100)

    def rotate(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        qkv = content[rows].clone()
        pool = torch.zeros(7, 1, 2, KV_HEADS, 16 * 64, dtype=dtype)
        rope_kv_write(
            qkv,
            pool,
            0,
            rope_table=table,
            positions=positions[rows],
            slots=positions[rows],
            force="native",
        )
        return qkv, pool

    together, pool = rotate(slice(0, 100))
    alone, alone_pool = rotate(slice(33, 34))
    assert torch.equal(together[33:34], alone)
    for view in (kv_pool.keys, kv_pool.values):
        assert torch.equal(view(pool, 0, 64)[2, :, 1], view(alone_pool, 0, 64)[2, :, 1])
