"""The architecture of a model, from a config.json or GGUF metadata, every number checked.

Anything that would change the computation and is not implemented is refused here, by name, rather
than ignored. Knows no files and no tensors' content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from octavo.engine.models.fields import Fields, UnreadableError, shown

ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Class names of Hugging Face configs and their model types."""

GGUF_ARCHITECTURES: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

ROPE_PARAMETERS: Final = {
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""Scalings of rotary positions that we compute, and what each needs."""

_MAXIMUM: Final = {
    "hidden_size": 1 << 17,
    "intermediate_size": 1 << 19,
    "num_layers": 1024,
    "num_heads": 1024,
    "num_kv_heads": 1024,
    "head_dim": 512,
    "vocab_size": 1 << 22,
    "max_position": 1 << 26,
}
HEAD_DIM_STEP: Final = 16
"""The attention kernels take heads of whole vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama family: pre-norm, grouped-query attention, rotary positions, SwiGLU.

    Raises:
        UnreadableError: a number is outside its range or the sizes do not fit each other.
    """

    architecture: str
    """Class name as Hugging Face writes it."""
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's."""
    max_position: int
    rope_theta: float
    rope_scaling: Mapping[str, float | str] | None
    """None, or "rope_type" of ROPE_PARAMETERS with its numbers."""
    rms_norm_eps: float
    tie_word_embeddings: bool
    attention_bias: bool
    """q, k and v have a bias; the output projection never has."""
    qk_norm: bool
    """RMS norm over each head of q and k before the rotation."""

    def __post_init__(self) -> None:
        for name, maximum in _MAXIMUM.items():
            if not 1 <= getattr(self, name) <= maximum:
                raise UnreadableError(f"{name} = {getattr(self, name)} is not within 1 … {maximum}")
        if self.head_dim % HEAD_DIM_STEP:
            raise UnreadableError(
                f"head_dim = {self.head_dim} is not a multiple of {HEAD_DIM_STEP}"
            )
        if self.num_heads % self.num_kv_heads:
            heads = f"{self.num_heads} heads, {self.num_kv_heads} KV heads"
            raise UnreadableError(f"{heads}: not a multiple")
        if not 1.0 < self.rope_theta <= 1e12:
            raise UnreadableError(f"rope_theta = {self.rope_theta} is not within 1 … 1e12")
        if not 0.0 < self.rms_norm_eps < 1.0:
            raise UnreadableError(f"rms_norm_eps = {self.rms_norm_eps} is not within 0 … 1")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the name and shape of every tensor that the model is made of."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (q_rows, hidden),
            "self_attn.k_proj.weight": (kv_rows, hidden),
            "self_attn.v_proj.weight": (kv_rows, hidden),
            "self_attn.o_proj.weight": (hidden, q_rows),
            "post_attention_layernorm.weight": (hidden,),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        if self.attention_bias:
            layer["self_attn.q_proj.bias"] = (q_rows,)
            layer["self_attn.k_proj.bias"] = layer["self_attn.v_proj.bias"] = (kv_rows,)
        if self.qk_norm:
            layer["self_attn.q_norm.weight"] = layer["self_attn.k_norm.weight"] = (self.head_dim,)
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, hidden),
            "model.norm.weight": (hidden,),
        }
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, hidden)
        for i in range(self.num_layers):
            shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        return shapes


def from_hugging_face(raw: Mapping[str, object]) -> ModelConfig:
    """Reads a parsed config.json.

    Raises:
        UnreadableError: the model needs its own code, is of an unknown architecture, or uses what
            we do not compute.
    """
    fields = Fields(raw)
    architecture = _architecture(fields)
    if "quantization_config" in fields:
        raise UnreadableError(
            "its safetensors are quantised; use the original weights or a GGUF file"
        )
    if fields.text("hidden_act", "silu") != "silu":
        raise UnreadableError(
            f"hidden_act = {shown(fields.get('hidden_act'))}; only silu is computed"
        )
    _refuse_window(fields, architecture)
    qwen2 = architecture == "Qwen2ForCausalLM"
    for name in ("attention_bias", "mlp_bias"):
        if not qwen2 and fields.flag(name, default=False):
            raise UnreadableError(f"{name} = true is not computed for {architecture}")
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise UnreadableError("partial_rotary_factor is not 1")
    num_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    if num_heads < 1:
        raise UnreadableError(f"num_attention_heads = {num_heads} is not positive")
    if "head_dim" not in fields and hidden_size % num_heads:
        raise UnreadableError(f"hidden_size = {hidden_size} is not a multiple of {num_heads} heads")
    theta, scaling = _rope(fields)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=fields.integer("head_dim", hidden_size // num_heads),
        vocab_size=fields.integer("vocab_size"),
        max_position=fields.integer("max_position_embeddings"),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention_bias=qwen2,
        qk_norm=architecture == "Qwen3ForCausalLM",
    )


def from_gguf(
    metadata: Mapping[str, object], *, vocab_size: int, tied: bool, rope_factors: bool
) -> ModelConfig:
    """Reads the metadata of a GGUF file.

    Args:
        metadata: all keys of the header.
        vocab_size: rows of the embedding tensor.
        tied: whether the file has no output matrix of its own.
        rope_factors: whether the file has rotary factors of its own, see `llama3_rope`.
    """
    general = Fields(metadata)
    name = general.text("general.architecture")
    if name not in GGUF_ARCHITECTURES:
        raise UnreadableError(f"architecture {shown(name)}; known: {', '.join(GGUF_ARCHITECTURES)}")
    if general.integer("split.count", 1) > 1:
        raise UnreadableError("it is one part of a split GGUF; merge the parts first")
    fields = Fields(metadata, f"{name}.")
    if fields.integer("expert_count", 0):
        raise UnreadableError(f"{name}.expert_count > 0: mixtures of experts are not computed")
    context = fields.integer("context_length")
    if 0 < fields.integer("attention.sliding_window", 0) < context:
        raise UnreadableError(f"{name}.attention.sliding_window is shorter than the context")
    num_heads = fields.integer("attention.head_count")
    hidden_size = fields.integer("embedding_length")
    head_dim = fields.integer("attention.key_length", hidden_size // max(num_heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise UnreadableError(f"{name}.{key} differs from the head size {head_dim}")
    return ModelConfig(
        architecture=GGUF_ARCHITECTURES[name],
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_layers=fields.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=context,
        rope_theta=fields.number("rope.freq_base", 10000.0),
        rope_scaling=_gguf_scaling(fields, rope_factors=rope_factors),
        # float32 in the file: 1e-5 comes as 9.999999747378752e-06
        rms_norm_eps=float(f"{fields.number('attention.layer_norm_rms_epsilon'):.7g}"),
        tie_word_embeddings=tied,
        attention_bias=name == "qwen2",
        qk_norm=name == "qwen3",
    )


def _architecture(fields: Fields) -> str:
    if "auto_map" in fields:
        raise UnreadableError("auto_map asks for code that comes with the model; it is never run")
    by_type = {model_type: name for name, model_type in ARCHITECTURES.items()}
    named = fields.texts("architectures") or [by_type.get(fields.text("model_type", ""), "none")]
    if len(named) != 1 or named[0] not in ARCHITECTURES:
        raise UnreadableError(f"architecture {shown(named[0])}; known: {', '.join(ARCHITECTURES)}")
    return named[0]


def _refuse_window(fields: Fields, architecture: str) -> None:
    used = fields.flag("use_sliding_window", default=not architecture.startswith("Qwen"))
    window = fields.integer("sliding_window", 0)
    if used and 0 < window < fields.integer("max_position_embeddings"):
        raise UnreadableError(f"sliding_window = {window}: windowed attention is not computed")
    kinds = set(fields.texts("layer_types")) - {"full_attention"}
    if kinds:
        raise UnreadableError(
            f"layer_types has {shown(min(kinds))}; only full_attention is computed"
        )


def _rope(fields: Fields) -> tuple[float, Mapping[str, float | str] | None]:
    raw = fields.get("rope_parameters", fields.get("rope_scaling", {}))
    if not isinstance(raw, dict):
        raise UnreadableError("rope_parameters is not an object")
    rope = Fields(raw)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, None
    if kind not in ROPE_PARAMETERS:
        known = ", ".join(ROPE_PARAMETERS)
        raise UnreadableError(f"rope_type {shown(kind)} is not computed; known: {known}")
    numbers = {name: rope.number(name) for name in ROPE_PARAMETERS[kind]}
    if min(numbers.values()) <= 0:
        raise UnreadableError(f"rope_type {kind} has a number that is not positive")
    return theta, {"rope_type": kind, **numbers}


def _gguf_scaling(fields: Fields, *, rope_factors: bool) -> Mapping[str, float | str] | None:
    kind = fields.text("rope.scaling.type", "none")
    if kind not in ("none", "linear") or (rope_factors and kind != "none"):
        raise UnreadableError(f"{fields.prefix}rope.scaling.type = {shown(kind)} is not computed")
    if kind == "none":
        return None
    factor = fields.number("rope.scaling.factor")
    if factor <= 0:
        raise UnreadableError(f"{fields.prefix}rope.scaling.factor is not positive")
    return {"rope_type": "linear", "factor": factor}
