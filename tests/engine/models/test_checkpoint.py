"""One way in for both formats, and the same model from either."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from tests.engine.models.tiny_model import write_folder, write_gguf

from octavo.engine.models.checkpoint import Checkpoint, open_checkpoint
from octavo.runtime import manifest
from octavo.runtime.manifest import FileEntry, Manifest
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError


def test_both_formats_give_the_same_model(tmp_path: Path) -> None:
    folder: Checkpoint = open_checkpoint(write_folder(tmp_path / "Tiny"))
    file: Checkpoint = open_checkpoint(write_gguf(tmp_path / "Tiny.F32.gguf"))
    assert folder.model_id == file.model_id == "Tiny"
    assert folder.config == file.config
    assert set(folder.tensor_names()) == set(file.tensor_names())
    for name in folder.tensor_names():
        assert torch.equal(folder.tensor(name), file.tensor(name)), name
    assert folder.eos_token_ids == file.eos_token_ids == (0,)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none", None, "neither a folder nor a .gguf file"),
        ("weights.bin", b"\x80\x04", "neither a folder nor a .gguf file"),
        ("gone.gguf", None, "gone.gguf: No such file or directory"),
        ("m.gguf", b"GGML0000", "does not begin with GGUF"),
        ("empty.gguf", b"", "the header ends at byte 0"),
    ],
)
def test_what_is_no_model_is_refused(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OctavoError) as caught:
        open_checkpoint(tmp_path / name)
    assert caught.value.kind is MODEL_UNREADABLE
    assert reason in caught.value.message
    assert str(tmp_path / name) in caught.value.message


def write_manifest(folder: Path, model: str = "hf://some-org/Tiny-1B") -> Path:
    """Writes what the loader writes."""
    files = {
        path.name: FileEntry(
            size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in folder.iterdir()
    }
    whole = Manifest(model=model, asked="main", revision="7" * 40, files=files)
    (folder / manifest.NAME).write_bytes(whole.encode())
    return folder


def test_a_loaded_model_is_named_as_where_it_came_from(tmp_path: Path) -> None:
    folder = write_manifest(write_folder(tmp_path / "0a1b2c"))
    (tmp_path / "gguf").mkdir()
    file = write_gguf(tmp_path / "gguf" / "Tiny.F32.gguf")
    for path in (folder, write_manifest(tmp_path / "gguf"), file):
        checkpoint = open_checkpoint(path, verify=True)
        assert (checkpoint.model_id, checkpoint.revision) == ("some-org/Tiny-1B", "7" * 40)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"{}", "config.json has 2 bytes, octavo-manifest.json says"),
        ("chat_template.jinja", b"{{ 7 }}", "chat_template.jinja is not in octavo-manifest.json"),
        (manifest.NAME, b"{", "octavo-manifest.json cannot be read"),
    ],
)
def test_a_folder_that_is_not_its_manifest_is_refused(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    folder = write_manifest(write_folder(tmp_path / "m"))
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(OctavoError) as caught:
        open_checkpoint(folder)
    assert caught.value.kind is MODEL_UNREADABLE
    assert reason in caught.value.message


def test_weights_of_the_right_size_are_hashed_when_asked(tmp_path: Path) -> None:
    folder = write_manifest(write_folder(tmp_path / "m"))
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-5, 2)
        file.write(b"x")
    open_checkpoint(folder)
    told: list[tuple[int, int]] = []
    with pytest.raises(OctavoError, match=r"model.safetensors is damaged"):
        open_checkpoint(folder, verify=True, told=lambda *of: told.append(of))
    assert told == sorted(told) != []


def test_a_gguf_that_is_not_its_manifest_is_refused_by_its_own_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "Tiny.F32.gguf")
    write_manifest(tmp_path)
    beside = write_gguf(tmp_path / "Mine.F32.gguf")
    assert open_checkpoint(beside).model_id == "Mine", "the manifest does not speak of it"
    beside.unlink()
    with file.open("ab") as end:
        end.write(b"x")
    with pytest.raises(OctavoError, match=r"octavo-manifest\.json says"):
        open_checkpoint(file)
