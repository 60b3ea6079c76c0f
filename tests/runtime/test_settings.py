from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runtime.settings import (
    doc_of,
    env_of,
    flag_of,
    load,
    names,
    place_in,
    read_file,
    reject_unknown,
    setting,
)
from octavo.v1.errors import BAD_SETTING, UNKNOWN_SETTING, OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Some of each type."""

    max_len: int = setting(5, "A length.", unit="tokens", minimum=1, maximum=100)
    share: float = setting(0.5, "A share.", minimum=0.0, maximum=1.0)
    caching: bool = setting(True, "A switch.")
    hosts: tuple[str, ...] = setting(("a",), "Some hosts.")
    level: str = setting("info", "A choice.", choices=("info", "debug"))
    password: str = setting("", "A secret.", secret=True)


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text("max_len = 1\nshare = 0.1\nlevel = 'debug'\n")
    environ = {"OCTAVO_MAX_LEN": "2", "OCTAVO_SHARE": "0.2"}
    loaded = load(Settings, flags={"max_len": "3", "share": None}, environ=environ, file=file)
    assert (loaded.value.max_len, loaded.value.share, loaded.value.level) == (3, 0.2, "debug")
    assert loaded.value.caching is True
    assert dict(loaded.origins) == {
        "max_len": "flag --max-len",
        "share": "env OCTAVO_SHARE",
        "level": f"file {file}:3",
        "caching": "default",
        "hosts": "default",
        "password": "default",
    }


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("caching", "false", False),
        ("caching", "1", True),
        ("caching", False, False),
        ("hosts", "a,b", ("a", "b")),
        ("hosts", "", ()),
        ("hosts", ["x", "y"], ("x", "y")),
        ("share", 1, 1.0),
        ("max_len", "100", 100),
    ],
)
def test_text_becomes_the_type_of_the_field(name: str, raw: object, value: object) -> None:
    assert getattr(load(Settings, flags={name: raw}).value, name) == value


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("max_len", "five", "Expected `int`"),
        ("max_len", "0", "must be at least 1"),
        ("max_len", "101", "must be at most 100"),
        ("max_len", 1.5, "Expected `int`"),
        ("share", "nan", "must be at least 0"),
        ("caching", "perhaps", "Expected `bool`"),
        ("level", "loud", "must be one of info, debug"),
        ("hosts", 3, "Expected `array`"),
    ],
)
def test_bad_value_names_key_value_and_origin(name: str, raw: object, reason: str) -> None:
    with pytest.raises(OctavoError) as raised:
        load(Settings, flags={name: raw})
    assert raised.value.kind is BAD_SETTING
    for part in (name, repr(raw), f"flag {flag_of(name)}", reason):
        assert part in raised.value.message


@given(st.integers())
def test_no_number_outside_its_range_is_accepted(number: int) -> None:
    try:
        assert load(Settings, flags={"max_len": str(number)}).value.max_len == number
        assert 1 <= number <= 100
    except OctavoError:
        assert not 1 <= number <= 100


def test_secrets_are_masked_when_shown() -> None:
    loaded = load(Settings, environ={"OCTAVO_PASSWORD": "geheim"})
    assert loaded.shown("password") == "********"
    assert load(Settings).shown("password") == ""
    assert loaded.shown("level") == "info"


def test_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    for content in (b"= 5", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(OctavoError, match=r"o\.toml"):
            read_file(file)
    with pytest.raises(OctavoError, match="No such file"):
        read_file(tmp_path / "missing.toml")


def test_place_of_a_key_is_where_it_is_set_not_where_it_is_only_written(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    text = '# max_len = 1\nnote = """\nmax_len = 2\n"""\nmax_len_x = 3\n\'max_len\'=4\n'
    file.write_text(text)
    assert place_in(file, "max_len") == f"{file}:6"
    assert place_in(file, "hosts") == str(file)


def test_bad_value_of_a_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text("share = 0.1\nmax_len = 0\n")
    with pytest.raises(OctavoError, match=r"o\.toml:2\): must be at least 1"):
        load(Settings, file=file)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(OctavoError) as raised:
        reject_unknown(["max_lenn"], names(Settings), "file x")
    assert raised.value.kind is UNKNOWN_SETTING
    assert raised.value.message == "there is no setting max_lenn (file x); did you mean max_len?"
    reject_unknown(["max_len"], names(Settings), "file x")


def test_one_name_in_three_spellings() -> None:
    assert (flag_of("max_len"), env_of("max_len")) == ("--max-len", "OCTAVO_MAX_LEN")
    assert doc_of(Settings, "max_len").unit == "tokens"
