"""Matrix products with a weight that is packed once, at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, Protocol

import torch

from octavo.kernels import native
from octavo.kernels.linear.cpu import NativeLinear
from octavo.kernels.linear.onednn import OneDnnLinear, can_pack
from octavo.kernels.linear.reference import PlainLinear

Backend = Literal["native", "onednn", "torch"]


class _Product(Protocol):
    """A weight packed by one of the back ends."""

    num_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies."""
        ...


_Maker = Callable[[torch.Tensor, torch.Tensor | None], _Product]

_BACKENDS: Final[Mapping[Backend, _Maker]] = {
    "native": NativeLinear,
    "onednn": OneDnnLinear,
    "torch": PlainLinear,
}


class PackedLinear:
    """y = x weight^T + bias, sums in float32; a row of y depends on that row of x alone.

    The independence holds bit by bit, by construction in "native", by measurement in "onednn",
    and not in "torch"; `ModelRunner.check_exact` verifies it on the machine at hand.

    Args:
        weight: [outputs, inputs], bfloat16 or float32; not kept.
        bias: [outputs] or None, dtype of weight.
        unrounded: whether y must not pass through the weight's dtype on its way, as it does in
            oneDNN; for logits.
        backend: taken whatever the machine has; for tests.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        unrounded: bool = False,
        backend: Backend | None = None,
    ) -> None:
        self.backend: Backend = backend or choose_backend(weight, unrounded=unrounded)
        """What computes the product; part of the engine's numerics id."""
        self._product = _BACKENDS[self.backend](weight, bias)

    @property
    def num_bytes(self) -> int:
        """Memory of the weight and the bias."""
        return self._product.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [rows, outputs] float32 for contiguous x [rows, inputs], dtype of the weight."""
        return self._product(x)


def choose_backend(weight: torch.Tensor, *, unrounded: bool) -> Backend:
    """Returns the fastest product for a weight.

    Measured on Zen 4, one thread, SmolLM2's shapes: native takes 0.6 of oneDNN's time with one
    row, 0.9 with 32, 1.0 with 512. With matrix units (AMX) oneDNN is several times faster, but
    rounds its result to bfloat16: a third more error in all, and ties between logits.
    """
    if weight.device.type == "cpu" and native.library() is not None:
        has_matrix_units = native.isa().startswith("amx") and weight.dtype == torch.bfloat16
        if unrounded or not has_matrix_units:
            return "native"
    return "onednn" if can_pack(weight) else "torch"
