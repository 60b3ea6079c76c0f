"""What `paged_attention` computes."""

from __future__ import annotations

import torch

from octavo.kernels import kv_pool


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
    """Specifies `octavo.kernels.paged_attention.paged_attention`."""
    kv_heads = pool.shape[3]
    width = qkv.shape[1] - 2 * kv_heads * head_dim
    output = qkv.new_empty((len(qkv), width), dtype=pool.dtype)
    starts = query_starts.tolist()
    for request, first in enumerate(first_positions.tolist()):
        rows = slice(starts[request], starts[request + 1])
        num_keys = first + starts[request + 1] - starts[request]
        k = _gather(kv_pool.keys(pool, layer, head_dim), block_tables[request], num_keys)
        v = _gather(kv_pool.values(pool, layer, head_dim), block_tables[request], num_keys)
        # [kv_heads, group, queries, head_dim]
        q = qkv[rows, :width].reshape(num_keys - first, kv_heads, -1, head_dim)
        q = q.permute(1, 2, 0, 3)
        scores = scale * q @ k.transpose(-1, -2)
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(ones.triu(first + 1), -torch.inf)
        heads = torch.softmax(scores, dim=-1) @ v
        output[rows] = heads.permute(2, 0, 1, 3).flatten(1).to(pool.dtype)
    return output


def _gather(blocks: torch.Tensor, table: torch.Tensor, num_keys: int) -> torch.Tensor:
    """Returns [kv_heads, 1, num_keys, head_dim] float32."""
    _, heads, block_tokens, head_dim = blocks.shape
    used = table[: -(-num_keys // block_tokens)].long()
    in_order = blocks[used].transpose(0, 1).reshape(heads, -1, head_dim)
    return in_order[:, None, :num_keys].float()
