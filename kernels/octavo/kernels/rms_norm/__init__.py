"""Root mean square norm, with the residual addition that precedes it in a transformer."""

from __future__ import annotations

import torch

from octavo.kernels.dispatch import Implementation, use_native
from octavo.kernels.rms_norm import cpu, reference


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor | None = None,
    force: Implementation | None = None,
) -> torch.Tensor:
    """Returns y[t] = v[t] / sqrt(mean(v[t]^2) + eps) * weight, in float32, rounded once.

    Without a residual, v is x. With one, v is residual + x, and is written back into the residual.
    Both are float32 whatever the weight is: they sum up all layers, and their rounding would be the
    largest error of a bfloat16 model.

    Args:
        x: [tokens, hidden] float32, contiguous.
        weight: [hidden], bfloat16 or float32: the dtype of y.
        eps: added to the mean square.
        residual: [tokens, hidden] float32, updated in place.
        force: see `dispatch.use_native`.
    """
    if use_native(x, force):
        return cpu.rms_norm(x, weight, eps, residual)
    return reference.rms_norm(x, weight, eps, residual)
