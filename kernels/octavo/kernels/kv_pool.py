"""The layout of the KV pool: one page a block, all layers of a block in one run of memory.

A pool is one contiguous tensor [blocks, layers, 2 (K, V), kv_heads, block_tokens * head_dim].
Inside a head, V is [token][dim] and K is [dim][token], so that sixteen keys fill a register.
"""

from __future__ import annotations

import torch

PAGE_ORDER = "layer,kv,head,k:dim-token,v:token-dim"
"""Names the order of a page's bytes; pages are exchanged only between pools of one order."""

MAX_HEAD_DIM = 512
"""What the native kernels have room for; also in kv_pool.h."""

K, V = 0, 1
"""Indices of the third dimension."""


def page_shape(
    *, layers: int, kv_heads: int, block_tokens: int, head_dim: int
) -> tuple[int, int, int, int]:
    """Returns the shape of one block."""
    if block_tokens % 16 or head_dim % 16:
        raise ValueError(f"block of {block_tokens} tokens x {head_dim}: not multiples of 16")
    return layers, 2, kv_heads, block_tokens * head_dim


def keys(pool: torch.Tensor, layer: int, head_dim: int) -> torch.Tensor:
    """Returns a view of one layer's keys: [blocks, kv_heads, block_tokens, head_dim]."""
    blocks, _, _, heads, _ = pool.shape
    return pool[:, layer, K].reshape(blocks, heads, head_dim, -1).transpose(-1, -2)


def values(pool: torch.Tensor, layer: int, head_dim: int) -> torch.Tensor:
    """Returns a view of one layer's values: [blocks, kv_heads, block_tokens, head_dim]."""
    blocks, _, _, heads, _ = pool.shape
    return pool[:, layer, V].reshape(blocks, heads, -1, head_dim)
