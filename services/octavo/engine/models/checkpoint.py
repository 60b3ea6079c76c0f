"""A model's files as the engine sees them, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from octavo.engine.models.config import ModelConfig
from octavo.engine.models.fields import UnreadableError
from octavo.engine.models.gguf_file import GgufFile
from octavo.engine.models.resolve import Progress
from octavo.engine.models.safetensors_folder import SafetensorsFolder
from octavo.runtime import manifest
from octavo.runtime.manifest import Manifest, ManifestError
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError


class Checkpoint(Protocol):
    """Weights under Hugging Face's names, tokenizer, and what the model says of itself."""

    @property
    def model_id(self) -> str:
        """Canonical name: org/name of a hub model, else the folder's or file's."""
        ...

    @property
    def revision(self) -> str:
        """Commit of a hub model; empty for local files."""
        ...

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        ...

    @property
    def tokenizer_json(self) -> bytes:
        """The tokenizer as Hugging Face's tokenizers read it; adds no special tokens of its own."""
        ...

    @property
    def chat_template(self) -> str:
        """Jinja source; empty when the model has none."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """The id that begins a plain prompt; None when the model wants none."""
        ...

    @property
    def default_sampling(self) -> Mapping[str, float]:
        """The model's own temperature, top_p, top_k, min_p, repetition_penalty, where given."""
        ...

    @property
    def weights_version(self) -> str:
        """Digest of the weights' content; see `content_digest` for what it covers."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of all tensors as stored."""
        ...

    def tensor_names(self) -> Sequence[str]:
        """Returns the names of all tensors; "lm_head.weight" is absent when tied."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """Returns a tensor, float as stored or dequantised to float32; not to be written to."""
        ...


def open_checkpoint(
    path: Path, *, verify: bool = False, told: Progress | None = None
) -> Checkpoint:
    """Opens a folder with config.json and safetensors, one with a GGUF file, or a .gguf file.

    All that can be known without reading weights is checked here: config, names, shapes, types and
    sizes of all tensors, tokenizer, side files; and a manifest, where the loader left one.

    Args:
        path: folder or file.
        verify: whether to hash all files that a manifest lists, besides comparing their sizes.
        told: called with the bytes hashed so far and in all.

    Raises:
        OctavoError: MODEL_UNREADABLE with the reason.
    """
    try:
        if path.is_dir():
            return _open_folder(path, _checked(path, verify=verify, told=told))
        if path.suffix == ".gguf":
            found = _checked(path.parent, holds=path.name, verify=verify, told=told)
            return GgufFile(path, found)
        raise UnreadableError("it is neither a folder nor a .gguf file")
    except (UnreadableError, ManifestError) as error:
        raise OctavoError(MODEL_UNREADABLE, path=path, reason=str(error)) from error
    except OSError as error:
        reason = f"{Path(str(error.filename)).name}: {error.strerror}"
        raise OctavoError(MODEL_UNREADABLE, path=path, reason=reason) from error


def _checked(
    folder: Path, *, holds: str = "", verify: bool, told: Progress | None
) -> Manifest | None:
    """Returns the manifest of a folder that is what it says.

    None when there is none, or none that has the file which has to be held.
    """
    found = manifest.read(folder)
    if found is None or (holds and holds not in found.files):
        return None
    manifest.check_sizes(folder, found)
    if verify:
        manifest.check_digests(folder, found, told)
    return found


def _open_folder(path: Path, found: Manifest | None) -> Checkpoint:
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1 and not (path / "config.json").exists():
        return GgufFile(ggufs[0], found)
    return SafetensorsFolder(path, found)
