from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import DTYPES, assert_close, random

from octavo.kernels import linear as package
from octavo.kernels import native
from octavo.kernels.linear import Backend, PackedLinear, choose_backend
from octavo.kernels.linear.onednn import can_pack

# (outputs, inputs): SmolLM2's, then odd ones
SHAPES = [(960, 576), (3072, 576), (576, 1536), (33, 51), (1000, 16), (65, 1)]


def packed(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, backend: Backend
) -> PackedLinear:
    """A product of a back end that this machine has: oneDNN's bfloat16 needs AVX-512."""
    if backend == "onednn" and not can_pack(weight):
        pytest.skip(f"oneDNN computes no {weight.dtype} on this processor")
    return PackedLinear(weight, bias, backend=backend)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("backend", ["native", "onednn"])
def test_rows_do_not_depend_on_how_many_there_are(
    backend: Backend, shape: tuple[int, int], with_bias: bool, dtype: torch.dtype
) -> None:
    weight = random(*shape, dtype=dtype) / shape[1] ** 0.5
    bias = random(shape[0], dtype=dtype, seed=1) if with_bias else None
    linear = packed(weight, bias, backend=backend)
    x = random(65, shape[1], dtype=dtype, seed=2)
    together = linear(x)
    rounded = dtype if backend == "onednn" else torch.float32
    expected = PackedLinear(weight, bias, backend="torch")(x)
    assert_close(together.to(rounded), expected.to(rounded))
    for rows in (*range(1, 14), 31, 32, 33, 48, 49, 63, 64):
        assert torch.equal(linear(x[:rows]), together[:rows]), rows
        assert torch.equal(linear(x[65 - rows :]), together[65 - rows :]), rows


@pytest.mark.parametrize("backend", ["native", "onednn", "torch"])
def test_bfloat16_gives_float32(backend: Backend) -> None:
    weight, x = random(100, 64, dtype=torch.bfloat16), random(3, 64, dtype=torch.bfloat16)
    y = packed(weight, backend=backend)(x)
    exact = x.double() @ weight.double().T
    assert y.dtype == torch.float32
    assert (y - exact).abs().max() < (0.3 if backend == "onednn" else 1e-4)


def test_threads_do_not_change_a_bit() -> None:
    linear = PackedLinear(random(960, 576, dtype=torch.bfloat16), backend="native")
    x = random(100, 576, dtype=torch.bfloat16, seed=1)
    expected = linear(x)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 8) * 5:
            torch.set_num_threads(threads)
            assert torch.equal(linear(x), expected), threads
            assert torch.equal(linear(x[7:8]), expected[7:8]), threads
    finally:
        torch.set_num_threads(before)


def test_matrix_units_take_onednn_except_where_it_may_not_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = random(64, 64, dtype=torch.bfloat16)
    monkeypatch.setattr(package, "can_pack", lambda _: True)
    monkeypatch.setattr(native, "isa", lambda: "avx512bf16")
    assert choose_backend(weight, unrounded=False) == "native"
    monkeypatch.setattr(native, "isa", lambda: "amxbf16")
    assert choose_backend(weight, unrounded=False) == "onednn"
    assert choose_backend(weight, unrounded=True) == "native"
    assert choose_backend(weight.float(), unrounded=False) == "native"
    monkeypatch.setattr(native, "library", lambda: None)
    assert choose_backend(weight, unrounded=True) == "onednn"
    monkeypatch.setattr(package, "can_pack", lambda _: False)
    assert choose_backend(weight, unrounded=True) == "torch"


def test_nan_stays_in_its_row() -> None:
    x = random(9, 64, dtype=torch.bfloat16)
    x[4, 7] = torch.nan
    y = PackedLinear(random(96, 64, dtype=torch.bfloat16))(x)
    assert y[4].isnan().all()
    assert y[[0, 3, 5, 8]].isfinite().all()


@pytest.mark.parametrize("backend", ["onednn", "torch"])
def test_num_bytes_counts_weight_and_bias(backend: Backend) -> None:
    weight, bias = torch.zeros(8, 4), torch.zeros(8)
    assert PackedLinear(weight, bias, backend=backend).num_bytes == 8 * 4 * 4 + 8 * 4


def test_native_pads_to_whole_panels() -> None:
    assert PackedLinear(torch.zeros(65, 3).bfloat16(), backend="native").num_bytes == 128 * 4 * 2
