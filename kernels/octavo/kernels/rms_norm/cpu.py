"""Calls the native norm."""

from __future__ import annotations

import torch

from octavo.kernels import native


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None
) -> torch.Tensor:
    """Computes `octavo.kernels.rms_norm.rms_norm`; a row's result depends on that row alone."""
    tokens, hidden = x.shape
    assert x.is_contiguous()
    assert weight.shape == (hidden,)
    assert x.dtype == torch.float32
    y = torch.empty_like(x, dtype=weight.dtype)
    residual_pointer = None
    if residual is not None:
        assert residual.is_contiguous()
        assert residual.shape == x.shape
        assert residual.dtype == torch.float32
        residual_pointer = residual.data_ptr()
    native.function("rms_norm", weight.dtype, "ppppnnfn")(
        x.data_ptr(),
        residual_pointer,
        weight.data_ptr(),
        y.data_ptr(),
        tokens,
        hidden,
        eps,
        torch.get_num_threads(),
    )
    return y
