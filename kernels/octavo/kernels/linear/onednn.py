"""oneDNN products with weights in its blocked layout; for processors with matrix units.

Measured: packed with a batch hint of 16, a row has the same bits in calls of 2 to 512 rows, on
AMD and Intel, in bfloat16 and float32. With a hint of 1, or with one row, oneDNN takes another
kernel that rounds otherwise; so a single row is computed twice.
"""

from __future__ import annotations

import torch

_BATCH_HINT = 16


def can_pack(weight: torch.Tensor) -> bool:
    """Returns whether oneDNN is there for a weight's device and type."""
    return (
        weight.device.type == "cpu"
        and bool(torch._C._has_mkldnn)
        and weight.dtype in (torch.bfloat16, torch.float32)
        and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class OneDnnLinear:
    """A weight packed by oneDNN."""

    name = "onednn"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _BATCH_HINT)
        self._bias = bias
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `octavo.kernels.linear.PackedLinear`; rounds to the weight's dtype first."""
        rows = len(x)
        if rows == 1:
            x = x.expand(2, -1).contiguous()
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._packed, self._bias, "none", [], ""
        )
        return y[:rows].float()
