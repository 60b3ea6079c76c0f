"""Calls the native activation."""

from __future__ import annotations

import torch

from octavo.kernels import native


def silu_mul(gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Computes `octavo.kernels.silu_mul.silu_mul`, element by element."""
    tokens, width = gate_up.shape
    assert gate_up.is_contiguous()
    assert gate_up.dtype == torch.float32
    assert width % 2 == 0
    y = torch.empty((tokens, width // 2), dtype=dtype)
    native.function("silu_mul", dtype, "ppnnn")(
        gate_up.data_ptr(), y.data_ptr(), tokens, width // 2, torch.get_num_threads()
    )
    return y
