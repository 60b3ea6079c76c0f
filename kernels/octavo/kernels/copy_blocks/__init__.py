"""Copies whole blocks inside the KV pool, for copy-on-write."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.kernels.copy_blocks import cpu, reference
from octavo.kernels.dispatch import Implementation, use_native


def copy_blocks(
    pool: torch.Tensor, pairs: Sequence[tuple[int, int]], *, force: Implementation | None = None
) -> None:
    """Copies block to block, one pair after the other, all layers.

    Args:
        pool: see `octavo.kernels.kv_pool`.
        pairs: (from, to).
        force: see `dispatch.use_native`.
    """
    if use_native(pool, force):
        cpu.copy_blocks(pool, pairs)
    else:
        reference.copy_blocks(pool, pairs)
