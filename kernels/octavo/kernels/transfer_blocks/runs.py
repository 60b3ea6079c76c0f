"""Moves neighbours that stay neighbours in one copy: a copy costs more to begin than a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch


def transfer_blocks(
    source: torch.Tensor, target: torch.Tensor, pairs: Sequence[tuple[int, int]]
) -> None:
    """Does `octavo.kernels.transfer_blocks.transfer_blocks` on any two devices."""
    for first, start, length in contiguous(pairs):
        if min(first, start) < 0 or first + length > len(source) or start + length > len(target):
            raise IndexError(f"blocks {first} to {start}, {length} of them, are not in the pools")
        pages = source[first : first + length]
        target[start : start + length].copy_(pages, non_blocking=True)


def contiguous(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yields (from, to, length) of the longest runs in which both sides go up by one."""
    ordered = sorted(pairs)
    begin = 0
    for i in range(1, len(ordered) + 1):
        first, start = ordered[begin]
        length = i - begin
        if i == len(ordered) or ordered[i] != (first + length, start + length):
            yield first, start, length
            begin = i
