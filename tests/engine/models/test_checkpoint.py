"""One way in for both formats, and the same model from either."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.models.tiny_model import write_folder, write_gguf

from octavo.engine.models.checkpoint import Checkpoint, open_checkpoint
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
