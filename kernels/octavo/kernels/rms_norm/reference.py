"""What `rms_norm` computes."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> torch.Tensor:
    """Specifies `octavo.kernels.rms_norm.rms_norm`."""
    v = x if residual is None else residual.add_(x)
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return (v * scale * weight.float()).to(weight.dtype)
