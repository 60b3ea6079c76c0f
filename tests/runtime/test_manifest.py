"""The manifest tells a whole model from any other folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.runtime import manifest
from octavo.runtime.manifest import FileEntry, Manifest, ManifestError

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 9000, "empty": b""}


def write(folder: Path, model: str = "hf://some-org/Tiny-1B") -> Manifest:
    entries = {}
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
        entries[name] = FileEntry(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    whole = Manifest(model=model, asked="main", revision="0" * 40, files=entries)
    (folder / manifest.NAME).write_bytes(whole.encode())
    return whole


def test_what_was_written_is_read(tmp_path: Path) -> None:
    whole = write(tmp_path)
    assert manifest.read(tmp_path) == whole
    assert whole.num_bytes == sum(map(len, FILES.values()))
    manifest.check_sizes(tmp_path, whole)
    manifest.check_digests(tmp_path, whole)


def test_a_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert manifest.read(tmp_path) is None


def test_equal_manifests_are_equal_bytes(tmp_path: Path) -> None:
    whole = write(tmp_path)
    files = dict(reversed(whole.files.items()))
    again = Manifest(files=files, revision=whole.revision, asked="main", model=whole.model)
    assert again.encode() == whole.encode()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf://some-org/Tiny-1B", "some-org/Tiny-1B"),
        ("hf://some-org/Tiny-GGUF/tiny.Q4_0.gguf", "some-org/Tiny-GGUF"),
        ("s3://bucket/llama/tiny", "bucket/llama/tiny"),
    ],
)
def test_the_model_has_the_name_of_its_origin(tmp_path: Path, model: str, name: str) -> None:
    assert write(tmp_path, model).model_id == name


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format": 2, "model": "m", "asked": "", "revision": "r", "files": {}}',
        b'{"format": 1, "model": "m", "asked": "", "revision": "r", "files": {}, "x": 1}',
        b'{"format": 1, "model": "m", "asked": "", "revision": "r", "files": {"a": {"size": 1}}}',
        b"[" * 100_000,
        b"\xff\xfe",
        b" " * (1 << 20) + b"{}",
    ],
    ids=["empty", "list", "bare", "newer", "unknown", "short", "deep", "binary", "large"],
)
def test_what_is_no_manifest_is_refused_in_one_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / manifest.NAME).write_bytes(text)
    with pytest.raises(ManifestError) as caught:
        manifest.read(tmp_path)
    assert "\n" not in str(caught.value)


def _longer(folder: Path) -> None:
    with (folder / "config.json").open("ab") as file:
        file.write(b" ")


def _linked(folder: Path) -> None:
    (folder / "config.json").rename(folder.parent / "elsewhere.json")
    (folder / "config.json").symlink_to(folder.parent / "elsewhere.json")


def _foldered(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_longer, "config.json has 3 bytes, octavo-manifest.json says 2"),
        (lambda folder: (folder / "empty").unlink(), "empty is missing"),
        (lambda folder: (folder / "more.jinja").touch(), "more.jinja is not in"),
        (_linked, "config.json is not a regular file"),
        (_foldered, "config.json is not a regular file"),
    ],
    ids=["longer", "missing", "more", "link", "folder"],
)
def test_another_folder_is_told_without_reading_it(
    tmp_path: Path, damage: Callable[[Path], object], reason: str
) -> None:
    (tmp_path / "m").mkdir()
    whole = write(tmp_path / "m")
    damage(tmp_path / "m")
    with pytest.raises(ManifestError, match=reason):
        manifest.check_sizes(tmp_path / "m", whole)


def test_files_of_the_file_system_do_not_count(tmp_path: Path) -> None:
    whole = write(tmp_path)
    (tmp_path / ".nfs0001").touch()
    manifest.check_sizes(tmp_path, whole)


@pytest.mark.parametrize("at", [0, 1_500_000, 256 * 9000 - 1])
def test_one_other_bit_is_found(tmp_path: Path, at: int) -> None:
    whole = write(tmp_path)
    data = bytearray(FILES["model.safetensors"])
    data[at] ^= 4
    (tmp_path / "model.safetensors").write_bytes(data)
    manifest.check_sizes(tmp_path, whole)
    with pytest.raises(ManifestError, match=r"model.safetensors is damaged"):
        manifest.check_digests(tmp_path, whole)


def test_hashing_says_how_far_it_is(tmp_path: Path) -> None:
    whole = write(tmp_path)
    told: list[tuple[int, int]] = []
    manifest.check_digests(tmp_path, whole, lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (whole.num_bytes, whole.num_bytes)
    assert len(told) >= 3
