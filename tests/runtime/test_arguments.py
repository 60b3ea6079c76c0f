from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runtime.arguments import Sources, as_flags, metavar_of, options, parse, shown_default
from octavo.runtime.settings import Loaded, setting
from octavo.v1.errors import OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a test.

    This line is not the heading.
    """

    max_len: int = setting(5, "A length.", unit="tokens", minimum=1)
    wait_s: float = setting(0.5, "A time.", unit="s")
    caching: bool = setting(True, "A switch.")
    no_auth: bool = setting(False, "A switch of something off.")
    hosts: tuple[str, ...] = setting((), "Some hosts.")
    level: str = setting("info", "A choice.", choices=("info", "debug"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Settings of another part."""

    max_len: int = setting(7, "The second of the name.")
    extra: str = setting("", "Only here.")


def parsed(*argv: str, **environ: str) -> Loaded[Settings]:
    return parse(Settings, argv, environ, "prog")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_flags_fill_every_kind_of_field() -> None:
    loaded = parsed("--max-len", "9", "--wait-s=2", "--no-caching", "--hosts", "a,b")
    assert loaded.value == Settings(max_len=9, wait_s=2.0, caching=False, hosts=("a", "b"))
    assert loaded.origins["caching"] == "flag --caching"


def test_file_is_named_by_flag_variable_or_place() -> None:
    Path("octavo.toml").write_text("max_len = 1")
    Path("a.toml").write_text("max_len = 2")
    Path("b.toml").write_text("max_len = 3")
    assert parsed().value.max_len == 1
    assert parsed(OCTAVO_CONFIG="a.toml").value.max_len == 2
    assert parsed("--config", "b.toml", OCTAVO_CONFIG="a.toml").value.max_len == 3
    assert parsed(OCTAVO_CONFIG="").value.max_len == 5


def test_process_accepts_what_belongs_to_others() -> None:
    Path("octavo.toml").write_text("extra = 'x'")
    assert parsed(OCTAVO_EXTRA="y").value == Settings()


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--max-ln", "3"], "OCT-1206", "did you mean --max-len?"),
        (["--nonsense"], "OCT-1206", "there is no setting --nonsense"),
        (["--max-len", "0"], "OCT-1205", "must be at least 1"),
        (["--max-len"], "OCT-1211", "requires an argument"),
        (["word"], "OCT-1211", "word"),
        (["--config", "missing.toml"], "OCT-1205", "missing.toml"),
    ],
)
def test_mistake_prints_code_and_help_and_exits_with_two(
    argv: list[str], code: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed(*argv)
    assert raised.value.code == 2
    error, advice = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error[{code}]: ")
    assert words in error
    assert advice.startswith("  help: ")


def test_help_shows_unit_default_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parsed("--help")
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    assert "\nSettings of a test:\n" in shown
    for part in ("--max-len TOKENS", "[default: 5]", "--wait-s SECONDS", "--level info|debug",
                 "--caching / --no-caching", "[default: on]",
                 "--no-auth / --auth", "--hosts A,B,…"):  # fmt: skip
        assert part in shown


def test_unknown_names_are_found_against_all_classes() -> None:
    known = ["max_len", "extra"]
    Sources(flags={}, environ={"OCTAVO_EXTRA": "", "OTHER": ""}, file=None).reject_unknown(known)
    Path("o.toml").write_text("extra = ''\nextraa = ''\n")
    with pytest.raises(OctavoError, match=r"extraa \(file o.toml:2\); did you mean extra\?"):
        Sources(flags={}, environ={}, file=Path("o.toml")).reject_unknown(known)
    with pytest.raises(OctavoError, match=r"OCTAVO_EXTRAA .*did you mean OCTAVO_EXTRA\?"):
        Sources(flags={}, environ={"OCTAVO_EXTRAA": ""}, file=None).reject_unknown(known)


def test_of_two_fields_with_one_name_the_first_counts() -> None:
    made = options({"A": Settings, "B": Others}, omit=["level"])
    assert [(o.name, getattr(o, "group", "")) for o in made] == [
        ("max_len", "A"),
        ("wait_s", "A"),
        ("caching", "A"),
        ("no_auth", "A"),
        ("hosts", "A"),
        ("extra", "B"),
        ("config", ""),
    ]


@given(
    st.builds(
        Settings,
        max_len=st.integers(1, 10**9),
        wait_s=st.floats(-1e9, 1e9),
        caching=st.booleans(),
        no_auth=st.booleans(),
        hosts=st.lists(st.text("abc.:*-", min_size=1)).map(tuple),
        level=st.sampled_from(["info", "debug"]),
    )
)
def test_settings_survive_the_way_over_a_command_line(settings: Settings) -> None:
    argv = as_flags(settings, only=[f.name for f in fields(settings)])
    assert parsed(*argv).value == settings


def test_only_the_named_fields_become_flags() -> None:
    assert as_flags(Settings(), only=["max_len", "caching"]) == ["--max-len", "5", "--caching"]


def test_defaults_and_metavars_as_the_reader_types_them() -> None:
    assert shown_default(Settings, "hosts") == "empty"
    assert shown_default(Settings, "wait_s") == "0.5"
    assert [metavar_of("", int), metavar_of("", float), metavar_of("", str)] == [
        "INTEGER",
        "NUMBER",
        "TEXT",
    ]
