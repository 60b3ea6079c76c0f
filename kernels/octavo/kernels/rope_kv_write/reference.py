"""What `rope_kv_write` computes."""

from __future__ import annotations

import torch

from octavo.kernels import kv_pool


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
    """Specifies `octavo.kernels.rope_kv_write.rope_kv_write`."""
    head_dim = rope_table.shape[1]
    kv_heads = pool.shape[3]
    block_tokens = pool.shape[4] // head_dim
    heads = qkv.view(len(positions), -1, head_dim)
    num_heads = heads.shape[1] - 2 * kv_heads
    q, k, v = heads.tensor_split([num_heads, num_heads + kv_heads], dim=1)
    cos, sin = rope_table[positions].unsqueeze(1).chunk(2, dim=-1)
    k = _rotate(_norm(k, k_norm, eps), cos, sin)
    q.copy_(_rotate(_norm(q, q_norm, eps), cos, sin))
    written = slots >= 0
    blocks, offsets = slots[written] // block_tokens, slots[written] % block_tokens
    kv_pool.keys(pool, layer, head_dim)[blocks, :, offsets] = k[written].to(pool.dtype)
    kv_pool.values(pool, layer, head_dim)[blocks, :, offsets] = v[written].to(pool.dtype)


def _norm(heads: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    if weight is None:
        return heads
    return heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + eps) * weight.float()


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = heads.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
