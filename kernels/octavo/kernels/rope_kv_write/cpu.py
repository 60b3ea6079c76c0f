"""Calls the native rotation and write."""

from __future__ import annotations

import torch

from octavo.kernels import kv_pool, native


def rope_kv_write(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    rope_table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> None:
    """Computes `octavo.kernels.rope_kv_write.rope_kv_write`, head by head."""
    head_dim, kv_heads = rope_table.shape[1], pool.shape[3]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    assert qkv.is_contiguous()
    assert pool.is_contiguous()
    assert qkv.dtype == torch.float32
    assert rope_table.is_contiguous()
    assert rope_table.dtype == torch.float32
    assert positions.dtype == slots.dtype == torch.int64
    assert len(positions) == len(slots) == len(qkv)
    assert 0 <= layer < pool.shape[1]
    assert head_dim <= kv_pool.MAX_HEAD_DIM
    assert (q_norm is None) == (k_norm is None)
    native.function("rope_kv_write", pool.dtype, "pppppppnnnnnnfn")(
        qkv.data_ptr(),
        pool.data_ptr() + layer * pool.stride(1) * pool.itemsize,
        rope_table.data_ptr(),
        positions.data_ptr(),
        slots.data_ptr(),
        None if q_norm is None else q_norm.data_ptr(),
        None if k_norm is None else k_norm.data_ptr(),
        len(positions),
        heads,
        kv_heads,
        head_dim,
        pool.shape[4] // head_dim,
        pool.stride(0),
        eps,
        torch.get_num_threads(),
    )
