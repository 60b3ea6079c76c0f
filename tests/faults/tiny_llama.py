"""A real checkpoint that loads in a moment and whose steps take a millisecond: random weights."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch
from tests.engine.harness import TEMPLATE
from tests.fakes import BYTE_VOCAB, EOS, byte_tokenizer_json

from octavo.engine.models.config import from_hugging_face

MODEL = "tiny"
"""The name under which engines serve it."""

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": BYTE_VOCAB,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "eos_token_id": EOS,
}


def write_tiny_llama(folder: Path) -> Path:
    """Writes it into `folder`, the same bytes each time, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.2 + (1.0 if "norm" in name else 0.0)
        for name, shape in from_hugging_face(CONFIG).tensor_shapes().items()
    }
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": "<|begin|>", "eos_token": "<|end|>"})
    )
    return folder
