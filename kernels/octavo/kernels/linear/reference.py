"""What `PackedLinear` computes."""

from __future__ import annotations

import torch


class PlainLinear:
    """Torch's own product. The order of its sums may depend on the number of rows."""

    name = "torch"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.float()
        self.num_bytes = weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Specifies `octavo.kernels.linear.PackedLinear`."""
        return torch.nn.functional.linear(x.float(), self._weight.float(), self._bias)
