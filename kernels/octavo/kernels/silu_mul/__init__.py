"""The gated activation of a Llama's feed-forward block."""

from __future__ import annotations

import torch

from octavo.kernels.dispatch import Implementation, use_native
from octavo.kernels.silu_mul import cpu, reference


def silu_mul(
    gate_up: torch.Tensor, *, dtype: torch.dtype, force: Implementation | None = None
) -> torch.Tensor:
    """Returns g / (1 + exp(-g)) * u in float32, rounded once: [tokens, inner].

    Args:
        gate_up: [tokens, 2 * inner], g then u; float32, contiguous.
        dtype: of the result, bfloat16 or float32.
        force: see `dispatch.use_native`.
    """
    if use_native(gate_up, force):
        return cpu.silu_mul(gate_up, dtype)
    return reference.silu_mul(gate_up, dtype)
