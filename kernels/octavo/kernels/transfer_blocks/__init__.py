"""Copies whole blocks from one KV pool to another: offload to host memory, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.kernels.dispatch import Implementation
from octavo.kernels.transfer_blocks import reference, runs


def transfer_blocks(
    source: torch.Tensor,
    target: torch.Tensor,
    pairs: Sequence[tuple[int, int]],
    *,
    force: Implementation | None = None,
) -> None:
    """Copies blocks of one pool into another, all layers; in no order.

    Between a device and pinned memory the copies are only begun: whatever the device is told next
    comes after them, and the host has to wait for the device before it looks.

    Args:
        source: see `octavo.kernels.kv_pool`.
        target: another pool of the same layout, on this or on another device.
        pairs: (from, to); no target twice.
        force: "reference" takes one copy a pair instead of one a run.
    """
    if force == "reference":
        reference.transfer_blocks(source, target, pairs)
    else:
        runs.transfer_blocks(source, target, pairs)
