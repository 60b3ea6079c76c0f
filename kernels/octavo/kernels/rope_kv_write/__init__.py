"""Everything between the fused projection and attention: head norms, rotary positions, KV write."""

from __future__ import annotations

import torch

from octavo.kernels.dispatch import Implementation, use_native
from octavo.kernels.rope_kv_write import cpu, reference


def rope_kv_write(
    qkv: torch.Tensor,
    pool: torch.Tensor,
    layer: int,
    *,
    rope_table: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 0.0,
    force: Implementation | None = None,
) -> None:
    """Rotates q in place, and writes rotated k and plain v into the pool, rounded once.

    A head (a, b) of two halves becomes (a cos - b sin, b cos + a sin), in float32.
    With norms, q and k heads first pass a root mean square norm, in the same float32.

    Args:
        qkv: [tokens, (heads + 2 * kv_heads) * head_dim], float32, contiguous: q, k, v.
        pool: see `octavo.kernels.kv_pool`.
        layer: the pool's layer to write.
        rope_table: [positions, head_dim] float32: cosines of a half head, then sines.
        positions: [tokens] int64.
        slots: [tokens] int64, block * block_tokens + offset; a negative slot is not written.
        q_norm: [head_dim], dtype of the pool; given with k_norm.
        k_norm: as q_norm.
        eps: of the norms.
        force: see `dispatch.use_native`.
    """
    run = cpu.rope_kv_write if use_native(qkv, force) else reference.rope_kv_write
    run(qkv, pool, layer, rope_table, positions, slots, q_norm, k_norm, eps)
