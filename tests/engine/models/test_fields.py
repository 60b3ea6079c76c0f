"""Foreign values are checked as they are taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.models import fields
from octavo.engine.models.fields import Fields, UnreadableError, read_json, shown


def test_null_counts_as_absent() -> None:
    assert Fields({"a": None}).integer("a", 7) == 7
    assert "a" not in Fields({"a": None})
    with pytest.raises(UnreadableError, match=r"x\.a is missing"):
        Fields({"x.a": None}, "x.").integer("a")


def test_numbers_are_finite_and_no_truth_values() -> None:
    assert Fields({"a": 3}).number("a") == 3.0
    for wrong in (float("nan"), float("inf"), 10**400, True, "3"):
        with pytest.raises(UnreadableError):
            Fields({"a": wrong}).number("a")


def test_shown_is_short_and_plain() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("é" * 1000)) <= 60
    assert shown({"a": 1}) == "dict"


def test_a_json_file_has_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_JSON_BYTES", 5)
    path = tmp_path / "config.json"
    path.write_text("{}")
    assert read_json(path) == {}
    path.write_text('{"a":1}')
    with pytest.raises(UnreadableError, match=r"config\.json is larger than 5 bytes"):
        read_json(path)
