"""Calls the native attention."""

from __future__ import annotations

import torch

from octavo.kernels import kv_pool, native


def paged_attention(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    head_dim: int,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    first_positions: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Computes `octavo.kernels.paged_attention.paged_attention`."""
    kv_heads, page = pool.shape[3], pool.shape[4]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    requests = len(first_positions)
    assert qkv.is_contiguous()
    assert pool.is_contiguous()
    assert qkv.dtype == torch.float32
    assert 0 <= layer < pool.shape[1]
    assert head_dim <= kv_pool.MAX_HEAD_DIM
    assert heads % kv_heads == 0
    assert block_tables.is_contiguous()
    assert len(block_tables) == requests
    assert block_tables.dtype == query_starts.dtype == first_positions.dtype == torch.int32
    assert len(query_starts) == requests + 1
    output = torch.empty((len(qkv), heads * head_dim), dtype=pool.dtype)
    native.function("paged_attention", pool.dtype, "ppppppnnnnnnnfn")(
        qkv.data_ptr(),
        pool.data_ptr() + layer * pool.stride(1) * pool.itemsize,
        block_tables.data_ptr(),
        query_starts.data_ptr(),
        first_positions.data_ptr(),
        output.data_ptr(),
        requests,
        block_tables.shape[1],
        heads,
        kv_heads,
        head_dim,
        page // head_dim,
        pool.stride(0),
        scale,
        torch.get_num_threads(),
    )
    return output
