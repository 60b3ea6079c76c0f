"""Small random models as checkpoints, made by transformers, which is also what they are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from octavo.engine.models.config import ModelConfig, from_hugging_face

VOCAB = 300
SIZES: dict[str, object] = {
    "hidden_size": 96,
    "intermediate_size": 144,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomCheckpoint:
    """Implements `Checkpoint` with the weights of a transformers model."""

    model: Any
    """The transformers model; untyped there."""
    config: ModelConfig
    model_id: str = "random"
    revision: str = ""
    tokenizer_json: bytes = b"{}"
    chat_template: str = ""
    eos_token_ids: tuple[int, ...] = (0,)
    bos_token_id: int | None = None
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    weights_version: str = "0"
    num_bytes: int = 0

    def tensor_names(self) -> Sequence[str]:
        return list(self.config.tensor_shapes())

    def tensor(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self.model.state_dict()[name]
        return weight


def random_checkpoint(architecture: str = "Llama", **changes: object) -> RandomCheckpoint:
    """Makes a model, e.g. of architecture "Qwen3", with weights large enough to disagree about."""
    torch.manual_seed(5)
    hf_config = getattr(transformers, f"{architecture}Config")(**(SIZES | changes))
    model = getattr(transformers, f"{architecture}ForCausalLM")(hf_config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    raw = hf_config.to_dict() | {"architectures": [f"{architecture}ForCausalLM"]}
    return RandomCheckpoint(model=model, config=from_hugging_face(raw))
