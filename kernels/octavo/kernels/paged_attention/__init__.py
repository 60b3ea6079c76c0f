"""Causal attention over the KV pool, for prompt chunks and single tokens in one call."""

from __future__ import annotations

import torch

from octavo.kernels.dispatch import Implementation, use_native
from octavo.kernels.paged_attention import cpu, reference


def paged_attention(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    *,
    head_dim: int,
    block_tables: torch.Tensor,
    query_starts: torch.Tensor,
    first_positions: torch.Tensor,
    scale: float,
    force: Implementation | None = None,
) -> torch.Tensor:
    """Returns softmax(scale * q k^T) v over the keys up to each query's own position.

    Request r owns the queries [query_starts[r], query_starts[r + 1]), which stand at positions
    first_positions[r], first_positions[r] + 1, ... and whose keys and values, like all earlier
    ones, are in the pool already. Slots behind a request's last position may hold anything.
    A query's result does not depend, bit by bit, on the other queries of the call, on where its
    blocks lie, or on the number of threads.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim], float32, contiguous: the rotated q
            of all heads; the columns behind it are not read. Head h attends to the KV head
            h // (heads / kv_heads).
        pool: see `octavo.kernels.kv_pool`.
        layer: the pool's layer to read.
        head_dim: multiple of 16, at most `kv_pool.MAX_HEAD_DIM`.
        block_tables: [requests, width] int32; entry i holds positions from i * block_tokens.
        query_starts: [requests + 1] int32, ascending from 0 to tokens.
        first_positions: [requests] int32.
        scale: usually head_dim ** -0.5.
        force: see `dispatch.use_native`.

    Returns:
        [tokens, heads * head_dim], dtype of the pool.
    """
    run = cpu.paged_attention if use_native(qkv, force) else reference.paged_attention
    return run(qkv, pool, layer, head_dim, block_tables, query_starts, first_positions, scale)
