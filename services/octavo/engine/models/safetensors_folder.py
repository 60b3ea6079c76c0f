"""A Hugging Face folder as a checkpoint: config.json, *.safetensors, tokenizer.json.

Opens the files it names here and no others: pickles and Python files beside them stay closed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open

from octavo.engine.models import generation
from octavo.engine.models.config import ModelConfig, from_hugging_face
from octavo.engine.models.digest import content_digest
from octavo.engine.models.fields import MAX_JSON_BYTES, Fields, UnreadableError, read_json, shown
from octavo.runtime.manifest import Manifest
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError

_INDEX: Final = "model.safetensors.index.json"
_SHARD_NAME: Final = re.compile(r"\w[\w.-]{0,200}\.safetensors", re.ASCII)
_PICKLES: Final = ("*.bin", "*.pt", "*.pth")
_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_SNAPSHOT: Final = re.compile(r".*/models--([\w.-]+)--([\w.-]+)/snapshots/([0-9a-f]{40})")


class SafetensorsFolder:
    """A checkpoint in a folder; see `Checkpoint` for the attributes.

    Args:
        path: the folder.
        manifest: what the loader says of it, if it brought it.

    Raises:
        UnreadableError: the folder cannot be used.
        OSError: a file cannot be read.
    """

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self._path = path
        self.model_id, self.revision = _identity(path, manifest)
        config = Fields(read_json(path / "config.json"))
        self.config = from_hugging_face(config.raw)
        shards = _shards(path)
        self._shard_of = _check_tensors(shards, self.config)
        self.num_bytes = sum(
            _BYTES[shards[file].dtype(name)] * shards[file].size(name)
            for name, file in self._shard_of.items()
        )
        self._shards = shards
        self.tokenizer_json = _read_bytes(path / "tokenizer.json")
        tokenizer_config = Fields(_optional_json(path / "tokenizer_config.json"))
        self.chat_template = _chat_template(path, tokenizer_config)
        generation_config = Fields(_optional_json(path / "generation_config.json"))
        vocab_size = self.config.vocab_size
        self.eos_token_ids = generation.token_ids(
            generation_config, "eos_token_id", vocab_size
        ) or generation.token_ids(config, "eos_token_id", vocab_size)
        bos = generation.token_ids(config, "bos_token_id", vocab_size)
        begins = _adds_bos(tokenizer_config, self.tokenizer_json)
        self.bos_token_id = bos[0] if begins and bos else None
        self.default_sampling = generation.sampling_from_json(generation_config)
        self.weights_version = content_digest([path / "config.json", *map(path.joinpath, shards)])

    def tensor_names(self) -> Sequence[str]:
        """Returns the names of all tensors."""
        return tuple(self._shard_of)

    def tensor(self, name: str) -> torch.Tensor:
        """Returns the tensor as stored. It may lie in a mapped file: do not write to it."""
        try:
            return self._shards[self._shard_of[name]].tensor(name)
        except SafetensorError as error:
            raise OctavoError(MODEL_UNREADABLE, path=self._path, reason=str(error)) from error


def _identity(path: Path, manifest: Manifest | None) -> tuple[str, str]:
    """Returns name and revision: the same however a model of the hub came here."""
    if manifest is not None:
        return manifest.model_id, manifest.revision
    snapshot = _SNAPSHOT.fullmatch(str(path.absolute()))
    if snapshot:
        return f"{snapshot[1]}/{snapshot[2]}", snapshot[3]
    return path.absolute().name, ""


class _Shard:
    """One open safetensors file; the library checks header, offsets and length."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UnreadableError(f"{path.name} is missing")
        try:
            # the binding has no types
            file: Any = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise UnreadableError(f"{path.name} is damaged: {error}") from error
        self._file = file
        self.names: frozenset[str] = frozenset(file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        return str(self._file.get_slice(name).get_dtype())

    def size(self, name: str) -> int:
        return torch.Size(self.shape(name)).numel()

    def tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor


def _shards(path: Path) -> dict[str, _Shard]:
    """Opens the weight files of a folder, by file name in order."""
    index = path / _INDEX
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise UnreadableError(f"{_INDEX} has no weight_map")
        for file in weight_map.values():
            if not isinstance(file, str) or not _SHARD_NAME.fullmatch(file):
                raise UnreadableError(
                    f"{_INDEX} names {shown(file)}, not a safetensors file beside it"
                )
        shards = {file: _Shard(path / file) for file in sorted(set(weight_map.values()))}
        for name, file in weight_map.items():
            if name not in shards[file].names:
                raise UnreadableError(
                    f"{file} has no tensor {shown(name)}, which the index puts there"
                )
        return shards
    found = sorted(p.name for p in path.glob("*.safetensors"))
    if "model.safetensors" in found:
        found = ["model.safetensors"]
    if len(found) == 1:
        return {found[0]: _Shard(path / found[0])}
    if found:
        raise UnreadableError(f"{len(found)} safetensors files and no {_INDEX}")
    pickles = sorted(p.name for pattern in _PICKLES for p in path.glob(pattern))
    if pickles:
        raise UnreadableError(f"its weights are pickles ({pickles[0]}), which are never opened")
    raise UnreadableError("there is no safetensors file in it")


def _check_tensors(shards: Mapping[str, _Shard], config: ModelConfig) -> dict[str, str]:
    """Returns the file of each tensor that the config asks for; shape and type are right."""
    files = {name: file for file, shard in shards.items() for name in shard.names}
    if sum(len(shard.names) for shard in shards.values()) != len(files):
        raise UnreadableError("a tensor is in two files")
    found: dict[str, str] = {}
    for name, shape in config.tensor_shapes().items():
        if name not in files:
            raise UnreadableError(f"tensor {name} is missing")
        shard = shards[files[name]]
        if shard.shape(name) != shape:
            actual = shard.shape(name)
            raise UnreadableError(f"tensor {name} has shape {actual}, config.json asks for {shape}")
        if shard.dtype(name) not in _BYTES:
            raise UnreadableError(
                f"tensor {name} is {shard.dtype(name)}; read: {', '.join(_BYTES)}"
            )
        found[name] = files[name]
    return found


def _optional_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    found = read_json(path)
    if found.get("auto_map") is not None:
        raise UnreadableError(f"auto_map in {path.name} asks for code that comes with the model")
    return found


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise UnreadableError(f"{path.name} is missing")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise UnreadableError(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
    return path.read_bytes()


def _chat_template(path: Path, tokenizer_config: Fields) -> str:
    file = path / "chat_template.jinja"
    if not file.is_file():
        return generation.template_of(tokenizer_config)
    try:
        return _read_bytes(file).decode()
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{file.name} is not UTF-8") from error


def _adds_bos(tokenizer_config: Fields, tokenizer_json: bytes) -> bool:
    """Whether the tokenizer begins a text with a token: by its config, else by its own template."""
    if "add_bos_token" in tokenizer_config:
        return tokenizer_config.flag("add_bos_token", default=False)
    return generation.template_begins_with_token(tokenizer_json)
