from __future__ import annotations

import time
from fractions import Fraction

import pytest

from octavo.operator import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", Fraction(1, 2)), ("20Gi", 20 * 2**30), (2, 2), ("2", 2), (".5", Fraction(1, 2)),
        ("1.", 1), ("1e3", 1000), ("1E", 10**18), ("1e-3", Fraction(1, 1000)), ("1.5k", 1500),
        ("100n", Fraction(1, 10**7)), ("3u", Fraction(3, 10**6)),
    ],
)  # fmt: skip
def test_a_quantity_is_an_exact_number(text: object, value: Fraction) -> None:
    assert quantity.parse(text) == value


@pytest.mark.parametrize("text", ["", "20gi", "-1", "1e", "Gi", "1 Gi", "1\n", True, 1.5, None, []])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert quantity.parse(text) is None


def test_no_quantity_takes_long() -> None:
    began = time.monotonic()
    assert quantity.parse("1e999999999") is None
    assert quantity.parse("9" * 10_000) is None
    assert time.monotonic() - began < 5
