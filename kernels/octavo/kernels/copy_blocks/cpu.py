"""Moves pages as plain bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch


def copy_blocks(pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
    """Does `octavo.kernels.copy_blocks.copy_blocks`: a page is one run of memory."""
    assert pool.is_contiguous()
    base, page_bytes = pool.data_ptr(), pool[0].nbytes
    for source, target in pairs:
        assert 0 <= source < len(pool)
        assert 0 <= target < len(pool)
        if source != target:
            ctypes.memmove(base + target * page_bytes, base + source * page_bytes, page_bytes)
