"""Kubernetes' quantities, such as "500m", "20Gi" or 2, as exact numbers."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

Amount = Fraction
ZERO: Final = Fraction(0)

MAX_LENGTH: Final = 32
PATTERN: Final = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
"""A quantity that is not negative; with a bound on the exponent, so that no number is endless."""

_SUFFIXES: Final = {
    "": Fraction(1),
    **{s: Fraction(1000) ** -n for n, s in enumerate("mun", start=1)},
    **{s: Fraction(1000) ** n for n, s in enumerate("kMGTPE", start=1)},
    **{f"{s}i": Fraction(1024) ** n for n, s in enumerate("KMGTPE", start=1)},
}


def parse(value: object) -> Amount | None:
    """Returns the number that a quantity stands for; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    text = str(value)
    found = re.fullmatch(PATTERN, text) if len(text) <= MAX_LENGTH else None
    if found is None:
        return None
    number, suffix = Fraction(f"0{found[1]}"), found[3] or ""
    if suffix in _SUFFIXES:
        return number * _SUFFIXES[suffix]
    return number * Fraction(10) ** int(suffix[1:])
