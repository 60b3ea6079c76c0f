"""What `silu_mul` computes."""

from __future__ import annotations

import torch


def silu_mul(gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Specifies `octavo.kernels.silu_mul.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(dtype)
