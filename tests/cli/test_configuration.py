from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.configuration import explain, show, written_range
from octavo.cli.settings import ServeSettings
from octavo.runtime.arguments import Sources
from octavo.v1.errors import OctavoError


def settings_of(file: Path | None = None, **environ: str) -> ServeSettings:
    return ServeSettings.load(Sources(flags={"port": "9000"}, environ=environ, file=file))


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.split()[0] == name]
    return line.split(maxsplit=2)


def test_each_value_is_shown_with_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text("# two\nreplicas = 2\nhost = '0.0.0.0'\n")
    text = show(settings_of(file, OCTAVO_HOST="::1"), origin=True, as_json=False)
    assert row(text, "port") == ["port", "9000", "flag --port"]
    assert row(text, "host") == ["host", "::1", "env OCTAVO_HOST"]
    assert row(text, "replicas") == ["replicas", "2", f"file {file}:2"]
    assert row(text, "model") == ["model", "smollm2", "default"]


def test_json_holds_values_in_their_types() -> None:
    shown = json.loads(show(settings_of(), origin=True, as_json=True))
    assert shown["port"] == {"value": 9000, "origin": "flag --port"}
    assert shown["allowed_host"] == {"value": [], "origin": "default"}
    assert json.loads(show(settings_of(), origin=False, as_json=True))["port"] == 9000


def test_secret_is_masked_everywhere() -> None:
    settings = settings_of(OCTAVO_REDIS="redis://:geheim@h/0")
    for text in (
        show(settings, origin=True, as_json=False),
        show(settings, origin=True, as_json=True),
        explain(settings, "redis", as_json=False),
    ):
        assert "geheim" not in text
        assert "********" in text


@pytest.mark.parametrize("key", ["max_model_len", "--max-model-len", "OCTAVO_MAX_MODEL_LEN"])
def test_setting_is_explained_by_any_of_its_names(key: str) -> None:
    text = explain(settings_of(), key, as_json=False)
    for fact in ("unit      tokens", "--max-model-len", "OCTAVO_MAX_MODEL_LEN", "at least 0"):
        assert fact in text


def test_explaining_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(OctavoError, match=r"did you mean max_model_len\?"):
        explain(settings_of(), "max_model_length", as_json=False)


def test_explanation_as_json() -> None:
    facts = json.loads(explain(settings_of(), "replicas", as_json=True))
    assert (facts["key"], facts["range"], facts["default"]) == ("replicas", "1 to 64", "1")


def test_ranges_in_words() -> None:
    assert [written_range(1, None), written_range(None, 2.5), written_range(None, None)] == [
        "at least 1",
        "at most 2.5",
        "",
    ]
