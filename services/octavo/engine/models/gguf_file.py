"""A GGUF file as a checkpoint: Hugging Face's names, shapes and order of rows.

Tensors are read one by one, never mapped: a file that shrinks under us is an error, not a signal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from octavo.engine.models import generation
from octavo.engine.models.config import ModelConfig, from_gguf
from octavo.engine.models.dequantize import STORED_AS, can_dequantize, dequantize
from octavo.engine.models.digest import content_digest
from octavo.engine.models.fields import Fields, UnreadableError
from octavo.engine.models.gguf_header import GgufHeader, TensorInfo, read_header
from octavo.engine.models.gguf_tokenizer import tokenizer_json
from octavo.engine.models.llama3_rope import with_factors
from octavo.runtime.manifest import Manifest
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError

_GLOBAL_NAMES: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ROPE_FACTORS: Final = "rope_freqs.weight"
_FILE_TYPE: Final = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


class GgufFile:
    """A checkpoint in one GGUF file; see `Checkpoint` for the attributes.

    Args:
        path: the file.
        manifest: what the loader says of it, if it brought it.

    Raises:
        UnreadableError: the file cannot be used.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self._path = path
        header = read_header(path)
        fields = Fields(header.metadata)
        self.model_id = manifest.model_id if manifest else _FILE_TYPE.sub("", path.stem)
        self.revision = manifest.revision if manifest else ""
        self.config = self._config(header)
        self._tensors = _by_hugging_face_name(header, self.config)
        # llama.cpp keeps the two halves of a rotated pair side by side in this family
        self._interleaved = fields.text("general.architecture") == "llama"
        self.num_bytes = sum(info.num_bytes for info in self._tensors.values())
        vocab_size = self.config.vocab_size
        self.tokenizer_json = tokenizer_json(header.metadata, vocab_size)
        self.chat_template = fields.text("tokenizer.chat_template", "")
        tokenizer = Fields(header.metadata, "tokenizer.ggml.")
        ends = [generation.token_ids(tokenizer, f"{n}_token_id", vocab_size) for n in _ENDS]
        self.eos_token_ids = tuple(dict.fromkeys(itertools.chain.from_iterable(ends)))
        bos = generation.token_ids(tokenizer, "bos_token_id", vocab_size)
        begins = tokenizer.flag("add_bos_token", default=_begins_by_default(tokenizer))
        self.bos_token_id = bos[0] if begins and bos else None
        self.default_sampling = generation.sampling_from_gguf(fields)
        self.weights_version = content_digest([path])

    def tensor_names(self) -> Sequence[str]:
        """Returns the names of all tensors."""
        return tuple(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """Returns a new tensor: as stored when it is float, else dequantised to float32."""
        info = self._tensors[name]
        numbers = dequantize(self._read(info), info.quantization, info.shape)
        if self._interleaved and name.endswith(("q_proj.weight", "k_proj.weight")):
            pairs = numbers.view(-1, self.config.head_dim // 2, 2, info.shape[-1])
            numbers = pairs.transpose(1, 2).reshape(info.shape)
        return numbers

    def _read(self, info: TensorInfo) -> torch.Tensor:
        data = torch.empty(info.num_bytes, dtype=torch.uint8)
        with self._path.open("rb", buffering=0) as file:
            file.seek(info.offset)
            view = memoryview(data.numpy().data)
            while view:
                num_bytes = file.readinto(view)
                if not num_bytes:
                    reason = f"it ends before tensor {info.name} does"
                    raise OctavoError(MODEL_UNREADABLE, path=self._path, reason=reason)
                view = view[num_bytes:]
        return data

    def _config(self, header: GgufHeader) -> ModelConfig:
        embedding = header.tensors.get("token_embd.weight")
        if embedding is None or len(embedding.shape) != 2:
            raise UnreadableError("it has no tensor token_embd.weight of two dimensions")
        factors = header.tensors.get(_ROPE_FACTORS)
        config = from_gguf(
            header.metadata,
            vocab_size=embedding.shape[0],
            tied="output.weight" not in header.tensors,
            rope_factors=factors is not None,
        )
        if factors is None:
            return config
        if factors.shape != (config.head_dim // 2,) or factors.quantization not in STORED_AS:
            raise UnreadableError(f"tensor {_ROPE_FACTORS} is not of {config.head_dim // 2} floats")
        data = dequantize(self._read(factors), factors.quantization, factors.shape)
        return with_factors(config, data.float().tolist())


_ENDS: Final = ("eos", "eot")


def _begins_by_default(tokenizer: Fields) -> bool:
    """Llama 3 files leave add_bos_token out and mean yes."""
    return tokenizer.text("pre", "default") in ("llama-bpe", "llama3", "llama-v3")


def _by_hugging_face_name(header: GgufHeader, config: ModelConfig) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for name, shape in config.tensor_shapes().items():
        theirs = _GLOBAL_NAMES.get(name) or _layer_name(name)
        info = header.tensors.get(theirs)
        if info is None:
            raise UnreadableError(f"tensor {theirs} is missing")
        if info.shape != shape:
            raise UnreadableError(
                f"tensor {theirs} has shape {info.shape}, the config asks for {shape}"
            )
        tensors[name] = info
    for quantization in {info.quantization for info in tensors.values()}:
        if not can_dequantize(quantization):
            raise UnreadableError(f"its tensors are {quantization.name}, which is not dequantised")
    unused = header.tensors.keys() - {info.name for info in tensors.values()} - {_ROPE_FACTORS}
    if unused:
        raise UnreadableError(f"tensor {min(unused)} has no place in {config.architecture}")
    return tensors


def _layer_name(name: str) -> str:
    match = _LAYER_NAME.fullmatch(name)
    assert match is not None
    layer, part, kind = match.groups()
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"
