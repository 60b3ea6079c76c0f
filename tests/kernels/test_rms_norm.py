from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import DTYPES, assert_close, random

from octavo.kernels.rms_norm import rms_norm

EPS = 1e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 16), (3, 576), (65, 40), (200, 1000), (2, 7)])
@pytest.mark.parametrize("with_residual", [False, True], ids=["plain", "residual"])
def test_native_equals_reference(
    tokens: int, hidden: int, with_residual: bool, dtype: torch.dtype
) -> None:
    x = random(tokens, hidden, dtype=torch.float32)
    weight = random(hidden, dtype=dtype, seed=1)
    residuals = [random(tokens, hidden, dtype=torch.float32, seed=2) for _ in range(2)]
    used = residuals if with_residual else [None, None]
    ours = rms_norm(x, weight, eps=EPS, residual=used[0], force="native")
    expected = rms_norm(x, weight, eps=EPS, residual=used[1], force="reference")
    assert_close(ours, expected)
    assert torch.equal(*residuals)


def test_reference_equals_torch() -> None:
    x, weight = random(5, 64, dtype=torch.float32), random(64, dtype=torch.float32, seed=1)
    expected = torch.nn.functional.rms_norm(x, (64,), weight, EPS)
    assert_close(rms_norm(x, weight, eps=EPS, force="reference"), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_does_not_depend_on_the_batch(dtype: torch.dtype) -> None:
    x, weight = random(300, 576, dtype=torch.float32), random(576, dtype=dtype, seed=1)
    together = rms_norm(x, weight, eps=EPS, force="native")
    for row in (0, 17, 299):
        alone = rms_norm(x[row : row + 1], weight, eps=EPS, force="native")
        assert torch.equal(together[row : row + 1], alone)


def test_nan_stays_in_its_row() -> None:
    x = random(3, 64, dtype=torch.float32)
    x[1, 5] = torch.nan
    y = rms_norm(x, torch.ones(64, dtype=torch.bfloat16), eps=EPS, force="native")
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()
