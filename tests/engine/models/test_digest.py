"""The digest names content: equal files are equal wherever they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.models import digest
from octavo.engine.models.digest import content_digest


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_equal_content_under_other_names_is_equal(tmp_path: Path) -> None:
    a, b = _write(tmp_path / "a", b"weights"), _write(tmp_path / "b", b"weights")
    assert content_digest([a]) == content_digest([b])


def test_every_byte_counts_in_a_small_file(tmp_path: Path) -> None:
    data = bytearray(range(256))
    whole = content_digest([_write(tmp_path / "a", bytes(data))])
    for i in range(0, 256, 17):
        changed = bytearray(data)
        changed[i] ^= 1
        assert content_digest([_write(tmp_path / "b", bytes(changed))]) != whole


def test_the_border_between_files_counts(tmp_path: Path) -> None:
    one = [_write(tmp_path / "a", b"ab"), _write(tmp_path / "b", b"c")]
    other = [_write(tmp_path / "c", b"a"), _write(tmp_path / "d", b"bc")]
    assert content_digest(one) != content_digest(other)


def test_a_large_file_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(digest, "HEAD_BYTES", 100)
    monkeypatch.setattr(digest, "PIECE_BYTES", 4)
    monkeypatch.setattr(digest, "PIECES_PER_FILE", 11)
    data = bytes(2004)
    plain = content_digest([_write(tmp_path / "a", data)])

    def changed(at: int) -> str:
        return content_digest([_write(tmp_path / "b", data[:at] + b"x" + data[at + 1 :])])

    assert changed(50) != plain
    assert changed(2003) != plain
    assert changed(1000) != plain
    assert changed(1010) == plain  # between two pieces: the docstring says so
    assert content_digest([_write(tmp_path / "c", data + b"\0")]) != plain
