"""A tiny random model on disk, byte tokenizer and all: a real checkpoint that loads in a moment."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
from tests.engine.harness import TEMPLATE
from tests.engine.random_checkpoint import SIZES, random_checkpoint
from tests.fakes import BYTE_VOCAB, EOS, byte_tokenizer_json


def write_tiny_model(folder: Path) -> Path:
    """Writes a Llama of 3 layers into `folder` and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = random_checkpoint("Llama", vocab_size=BYTE_VOCAB)
    tensors = {n: checkpoint.tensor(n).contiguous() for n in checkpoint.tensor_names()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    config = SIZES | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": BYTE_VOCAB,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes(byte_tokenizer_json())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": TEMPLATE, "bos_token": "<|begin|>", "eos_token": "<|end|>"})
    )
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_p": 0.9}))
    return folder
