"""What `PackedLinear` computes."""

from __future__ import annotations

import torch


class PlainLinear:
    """Torch's own product. Its rounding may depend on the number of rows."""

    name = "torch"

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
    ) -> None:
        self._weight, self._bias, self._out_dtype = weight.contiguous(), bias, out_dtype
        self.num_bytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Specifies `octavo.kernels.linear.PackedLinear`."""
        return torch.nn.functional.linear(x, self._weight, self._bias).to(self._out_dtype)
