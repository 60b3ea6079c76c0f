"""Native products: bfloat16 or float32 weights in panels of 64 outputs."""

from __future__ import annotations

import torch

from octavo.kernels import native

_PANEL = 64
_STEP = {torch.bfloat16: 2, torch.float32: 1}
"""Inputs that lie side by side: the pairs of the processor's bfloat16 product."""


class NativeLinear:
    """A weight packed as [panel][input / step][output in panel][step], padded with zeros."""

    name = "native"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = pack(weight)
        self._outputs, self._inputs = weight.shape
        self._dtype = weight.dtype
        self._bias = None if bias is None else bias.float().contiguous()
        self.num_bytes = self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Computes `octavo.kernels.linear.PackedLinear`."""
        assert x.is_contiguous()
        assert x.dtype == self._dtype
        assert x.shape[1] == self._inputs
        y = torch.empty((len(x), self._outputs))
        native.function("linear", self._dtype, "ppppnnnn")(
            x.data_ptr(),
            self._packed.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            y.data_ptr(),
            len(x),
            self._inputs,
            self._outputs,
            torch.get_num_threads(),
        )
        return y


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Returns the panels of a weight [outputs, inputs]."""
    outputs, inputs = weight.shape
    step = _STEP[weight.dtype]
    padding = (0, -inputs % step, 0, -outputs % _PANEL)
    padded = torch.nn.functional.pad(weight, padding) if any(padding) else weight
    return padded.reshape(-1, _PANEL, padded.shape[1] // step, step).transpose(1, 2).contiguous()
