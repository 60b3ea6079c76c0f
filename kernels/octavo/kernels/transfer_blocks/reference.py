"""What `transfer_blocks` does."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def transfer_blocks(
    source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
) -> None:
    """Specifies `octavo.kernels.transfer_blocks.transfer_blocks`."""
    for start, end in pairs:
        target[end] = source[start].to(target.device)
