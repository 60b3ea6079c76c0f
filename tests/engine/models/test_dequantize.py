"""Our unpacking equals the library's bit by bit, for any bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.models.dequantize import can_dequantize, dequantize

Type = gguf.GGMLQuantizationType


@pytest.mark.parametrize("quantization", [Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q6_K])
@settings(max_examples=50)
@given(data=st.data())
def test_equals_the_library(quantization: Type, data: st.DataObject) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    raw = data.draw(st.binary(min_size=6 * block_bytes, max_size=6 * block_bytes))
    packed = np.frombuffer(raw, np.uint8).copy()
    ours = dequantize(torch.from_numpy(packed), quantization, (2, 3 * block))
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(packed.reshape(2, -1), quantization)
    assert ours.shape == (2, 3 * block)
    assert np.array_equal(ours.numpy(), theirs, equal_nan=True)


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [(Type.F32, torch.float32), (Type.F16, torch.float16), (Type.BF16, torch.bfloat16)],
)
def test_floats_keep_their_type(quantization: Type, dtype: torch.dtype) -> None:
    numbers = torch.tensor([[1.5, -2.0], [0.25, 1024.0]], dtype=dtype)
    data = numbers.view(torch.uint8).flatten()
    assert torch.equal(dequantize(data, quantization, (2, 2)), numbers)


def test_integers_have_no_way_to_floats() -> None:
    assert can_dequantize(Type.Q4_K)
    assert can_dequantize(Type.Q4_1)
    assert not can_dequantize(Type.I32)
