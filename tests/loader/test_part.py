"""A file that goes on where it ended, and is never right by accident."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.loader.hub_server import git_sha1, sha256

from octavo.loader.part import Part
from octavo.loader.source import RemoteFile
from octavo.runtime.manifest import FileEntry

DATA = random.Random(1).randbytes(3_000_000)
FILE = RemoteFile(name="f", size=len(DATA), sha256=sha256(DATA))


def resumed(folder: Path, file: RemoteFile = FILE) -> tuple[Part, int]:
    """A part that went on, and how much it found."""
    part = Part(folder, file)
    found: list[int] = []
    asyncio.run(part.resume(found.append))
    return part, sum(found)


@settings(max_examples=25)
@given(kept=st.integers(0, len(DATA)), pieces=st.integers(1, 9))
def test_any_beginning_is_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, kept: int, pieces: int
) -> None:
    folder = tmp_path_factory.mktemp("part")
    (folder / "f").write_bytes(DATA[:kept])
    part, found = resumed(folder)
    assert part.size == found == kept
    step = (len(DATA) - kept) // pieces + 1
    for start in range(kept, len(DATA), step):
        assert not part.is_whole
        part.write(DATA[start : start + step])
    assert part.is_whole
    assert part.problem() == ""
    assert part.finish() == FileEntry(size=len(DATA), sha256=FILE.sha256)
    part.close()
    assert (folder / "f").read_bytes() == DATA


@pytest.mark.parametrize("at", [0, 1_234_567, 1_999_999])
def test_a_damaged_beginning_is_found(tmp_path: Path, at: int) -> None:
    bad = bytearray(DATA[:2_000_000])
    bad[at] ^= 1
    (tmp_path / "f").write_bytes(bad)
    part, _ = resumed(tmp_path)
    part.write(DATA[2_000_000:])
    assert part.is_whole
    assert "its sha256 is" in part.problem()
    part.discard()
    assert (part.size, (tmp_path / "f").stat().st_size) == (0, 0)
    part.write(DATA)
    assert part.problem() == ""
    part.close()


def test_what_is_longer_than_the_file_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(DATA + b"x")
    part, found = resumed(tmp_path)
    assert (part.size, found) == (0, 0)
    part.close()


def test_more_than_the_file_is_not_written(tmp_path: Path) -> None:
    part, _ = resumed(tmp_path)
    part.write(DATA[:-1])
    part.write(DATA[-1:] + b"and more")
    assert part.problem() == ""
    part.close()
    assert (tmp_path / "f").read_bytes() == DATA


@pytest.mark.parametrize("kind", ["sha256", "git_sha1", "md5"])
def test_each_digest_of_a_source_is_compared(tmp_path: Path, kind: str) -> None:
    right = {
        "sha256": sha256(DATA),
        "git_sha1": git_sha1(DATA),
        "md5": hashlib.md5(DATA).hexdigest(),
    }[kind]
    for wanted, is_right in (
        (right, True),
        (right[:-1] + ("0" if right[-1] != "0" else "1"), False),
    ):
        part = Part(tmp_path, RemoteFile(name="f", size=len(DATA), **{kind: wanted}))
        part.write(DATA)
        assert (part.problem() == "") is is_right
        assert part.finish().sha256 == sha256(DATA)
        part.discard()
        part.close()


def test_who_reads_the_old_file_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    with (tmp_path / "f").open("rb") as reader:
        part, _ = resumed(tmp_path)
        part.discard()
        part.write(DATA)
        part.close()
        assert reader.read() == b"old"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "f").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic"):
        Part(tmp_path, FILE)
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_an_empty_file_is_whole_at_once(tmp_path: Path) -> None:
    part, _ = resumed(tmp_path, RemoteFile(name="f", size=0, git_sha1=git_sha1(b"")))
    assert part.is_whole
    assert part.problem() == ""
    part.close()
