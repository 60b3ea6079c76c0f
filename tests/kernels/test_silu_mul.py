from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import DTYPES, assert_close, random

from octavo.kernels.silu_mul import silu_mul


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 16), (2, 1), (33, 1536), (100, 250)])
def test_native_equals_reference(tokens: int, inner: int, dtype: torch.dtype) -> None:
    gate_up = random(tokens, 2 * inner, dtype=torch.float32) * 4
    ours = silu_mul(gate_up, dtype=dtype, force="native")
    assert ours.dtype == dtype
    assert_close(ours, silu_mul(gate_up, dtype=dtype, force="reference"))


def test_large_gates_saturate() -> None:
    gate_up = torch.tensor([[100.0, -100.0, 0.0, torch.nan, 2.0, 2.0, 2.0, 2.0]])
    y = silu_mul(gate_up, dtype=torch.float32, force="native")
    assert_close(y[:, :3], torch.tensor([[200.0, 0.0, 0.0]]))
    assert y[0, 3].isnan()
