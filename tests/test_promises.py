"""The list of the engine's promises names tests that exist, and all tests that have a number."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "engine.md"


def named() -> set[str]:
    """Returns the tests of the page, as `engine/test_core::test_45_…`."""
    return set(re.findall(r"`([\w/]+::test_\w+)`", PAGE.read_text(encoding="utf-8")))


def existing(pattern: str) -> set[str]:
    """Returns the tests whose name matches, in the page's form."""
    return {
        f"{path.relative_to(TESTS).with_suffix('')}::{name}"
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(rf"^ *(?:async )?def ({pattern})\(", path.read_text("utf-8"), re.M)
    }


def test_every_test_that_the_page_names_exists() -> None:
    assert sorted(named() - existing(r"test_\w+")) == []


def test_every_test_with_a_number_is_on_the_page() -> None:
    numbered = {t for t in existing(r"test_\d\d_\w+") if t.startswith(("engine/", "proto/"))}
    assert len(numbered) > 50
    assert sorted(numbered - named()) == []


def test_every_number_has_its_row_or_a_reason() -> None:
    promises, _, others = PAGE.read_text("utf-8").partition("## What does not apply")
    rows = re.findall(r"^\| (\d+) \| .+test_.+ \|$", promises, re.M)
    reasons = re.findall(r"^\| ([\d, ]+) \| ", others.partition("\n## ")[0], re.M)
    told = {int(n) for cell in (*rows, *reasons) for n in cell.split(",")}
    assert told == set(range(1, 67))
