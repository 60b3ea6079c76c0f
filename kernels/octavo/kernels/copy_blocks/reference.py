"""What `copy_blocks` does."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_blocks(pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Specifies `octavo.kernels.copy_blocks.copy_blocks`."""
    for source, target in pairs:
        pool[target] = pool[source]
