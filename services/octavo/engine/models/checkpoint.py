"""A model's files as the engine sees them, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from octavo.engine.models.config import ModelConfig
from octavo.engine.models.fields import UnreadableError
from octavo.engine.models.gguf_file import GgufFile
from octavo.engine.models.safetensors_folder import SafetensorsFolder
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


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder with config.json and safetensors, or a .gguf file.

    All that can be known without reading weights is checked here: config, names, shapes, types and
    sizes of all tensors, tokenizer, side files.

    Raises:
        OctavoError: MODEL_UNREADABLE with the reason.
    """
    try:
        if path.is_dir():
            return SafetensorsFolder(path)
        if path.suffix == ".gguf":
            return GgufFile(path)
        raise UnreadableError("it is neither a folder nor a .gguf file")
    except UnreadableError as error:
        raise OctavoError(MODEL_UNREADABLE, path=path, reason=str(error)) from error
    except OSError as error:
        reason = f"{Path(str(error.filename)).name}: {error.strerror}"
        raise OctavoError(MODEL_UNREADABLE, path=path, reason=reason) from error
