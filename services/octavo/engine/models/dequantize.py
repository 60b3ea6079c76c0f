"""Quantised blocks of GGUF to floats.

The three formats that are most common are unpacked by torch, about four times as fast as the
library's numpy and equal to it bit by bit; the others go through the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import gguf.quants
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

STORED_AS: Final = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
"""Formats that are plain numbers; they keep their type."""


def dequantize(
    data: torch.Tensor, quantization: GGMLQuantizationType, shape: tuple[int, ...]
) -> torch.Tensor:
    """Returns the numbers of a tensor.

    Args:
        data: its bytes, uint8 [bytes].
        quantization: how they are packed.
        shape: what the result is shaped to; blocks run along the last dimension.
    """
    if quantization in STORED_AS:
        return data.view(STORED_AS[quantization]).view(shape)
    block_bytes = GGML_QUANT_SIZES[quantization][1]
    blocks = data.view(-1, block_bytes)
    unpack = _UNPACK.get(quantization)
    if unpack is not None:
        return unpack(blocks).view(shape)
    with np.errstate(all="ignore"):  # damaged scales give NaN, which the check of logits reports
        return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), quantization)).view(shape)


def can_dequantize(quantization: GGMLQuantizationType) -> bool:
    """Returns whether the format has a way to floats; integer tensors and new formats have none."""
    if quantization in STORED_AS or quantization in _UNPACK:
        return True
    one_block = np.zeros((1, GGML_QUANT_SIZES[quantization][1]), np.uint8)
    try:
        gguf.quants.dequantize(one_block, quantization)
    except NotImplementedError:
        return False
    return True


def _scale(blocks: torch.Tensor, column: int) -> torch.Tensor:
    """Returns the float16 at a byte column of each block as float32 [blocks, 1]."""
    return blocks[:, column : column + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Returns the low halves of 16 bytes, then their high halves: float32 [blocks, 32]."""
    out = torch.empty(len(packed), 2, 16)
    out[:, 0] = packed & 15
    out[:, 1] = packed >> 4
    return out.view(-1, 32)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(_scale(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    # multiplied and added apart, as the library does: one rounding each
    return _nibbles(blocks[:, 4:]).mul_(_scale(blocks, 0)).add_(_scale(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_scale(blocks, 0))


_UNPACK: Final[dict[GGMLQuantizationType, Callable[[torch.Tensor], torch.Tensor]]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}
