"""The Llama family: Llama, Mistral, Qwen2 (biases), Qwen3 (head norms), SmolLM.

Knows tensors and kernels; no request, no scheduler, no memory policy. Everything that depends on
the device is behind `octavo.kernels`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from octavo.engine.models.checkpoint import Checkpoint
from octavo.engine.models.config import ModelConfig
from octavo.kernels.linear import PackedLinear
from octavo.kernels.paged_attention import paged_attention
from octavo.kernels.rms_norm import rms_norm
from octavo.kernels.rope_kv_write import rope_kv_write
from octavo.kernels.silu_mul import silu_mul
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError

_ROPE_PIECE: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Ragged:
    """The tokens of a step, one request after the other. All on the model's device."""

    tokens: torch.Tensor
    """[tokens] int64."""
    positions: torch.Tensor
    """[tokens] int64."""
    slots: torch.Tensor
    """[tokens] int64: block * block_tokens + offset, where K and V of a token are written."""
    block_tables: torch.Tensor
    """[requests, width] int32."""
    query_starts: torch.Tensor
    """[requests + 1] int32."""
    first_positions: torch.Tensor
    """[requests] int32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The packed weights of one layer."""

    input_norm: torch.Tensor
    qkv: PackedLinear
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: PackedLinear
    post_norm: torch.Tensor
    gate_up: PackedLinear
    down: PackedLinear

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """All matrices of the layer."""
        return self.qkv, self.o, self.gate_up, self.down


class Llama:
    """A decoder with its weights packed for the device.

    Args:
        checkpoint: the weights, under Hugging Face's names; each is read once and not kept.
        dtype: of weights, activations and KV.
        device: where everything lives.

    Raises:
        OctavoError: MODEL_UNREADABLE if the rotary scaling is unknown.
    """

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = checkpoint.config
        self._weights = _Weights(checkpoint, dtype, device)
        self._frequencies = rope_frequencies(self.config, checkpoint.model_id).to(device)
        self.rope_table = torch.empty((0, self.config.head_dim), device=device)
        self._embedding = self._weights.get("model.embed_tokens.weight")
        self._layers = [self._load_layer(i) for i in range(self.config.num_layers)]
        self._final_norm = self._weights.get("model.norm.weight")
        tied = self.config.tie_word_embeddings
        # bfloat16 logits would tie: between 16 and 32 its steps are an eighth.
        self._lm_head = PackedLinear(
            self._embedding if tied else self._weights.get("lm_head.weight"),
            unrounded=True,
        )
        self.reserve_positions(_ROPE_PIECE)

    @property
    def num_bytes(self) -> int:
        """Memory of all matrices."""
        packed = sum(linear.num_bytes for layer in self._layers for linear in layer.linears)
        return packed + self._lm_head.num_bytes + self._embedding.nbytes

    @property
    def linear_backend(self) -> str:
        """What computes the matrix products."""
        return self._layers[0].qkv.backend

    @property
    def num_positions(self) -> int:
        """Positions that the rotary table has."""
        return len(self.rope_table)

    def reserve_positions(self, count: int) -> None:
        """Makes the rotary table long enough for the positions below count."""
        pieces = [self.rope_table]
        # Pieces of one size: a position's row never depends on how long the table is.
        for start in range(len(self.rope_table), count, _ROPE_PIECE):
            positions = torch.arange(
                start, start + _ROPE_PIECE, dtype=torch.float32, device=self._frequencies.device
            )
            angles = torch.outer(positions, self._frequencies)
            pieces.append(torch.cat([angles.cos(), angles.sin()], dim=-1))
        self.rope_table = torch.cat(pieces)

    def forward(self, batch: Ragged, pool: torch.Tensor) -> torch.Tensor:
        """Writes K and V of all tokens; returns their normed hidden states [tokens, hidden]."""
        config = self.config
        scale = config.head_dim**-0.5
        residual = self._embedding.index_select(0, batch.tokens).float()
        x = rms_norm(residual, self._layers[0].input_norm, eps=config.rms_norm_eps)
        next_norms = [layer.input_norm for layer in self._layers[1:]] + [self._final_norm]
        for index, (layer, next_norm) in enumerate(zip(self._layers, next_norms, strict=True)):
            qkv = layer.qkv(x)
            rope_kv_write(
                qkv,
                pool,
                index,
                rope_table=self.rope_table,
                positions=batch.positions,
                slots=batch.slots,
                q_norm=layer.q_norm,
                k_norm=layer.k_norm,
                eps=config.rms_norm_eps,
            )
            heads = paged_attention(
                qkv,
                pool,
                index,
                head_dim=config.head_dim,
                block_tables=batch.block_tables,
                query_starts=batch.query_starts,
                first_positions=batch.first_positions,
                scale=scale,
            )
            x = layer.o(heads)
            x = rms_norm(x, layer.post_norm, eps=config.rms_norm_eps, residual=residual)
            x = layer.down(silu_mul(layer.gate_up(x), dtype=pool.dtype))
            x = rms_norm(x, next_norm, eps=config.rms_norm_eps, residual=residual)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns [rows, vocab] float32 for rows of `forward`'s result."""
        return self._lm_head(hidden)

    def _load_layer(self, index: int) -> _Layer:
        get, prefix = self._weights.get, f"model.layers.{index}."
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        bias = None
        if self.config.attention_bias:
            bias = torch.cat([get(f"{attention}{name}_proj.bias") for name in "qkv"])
        normed = self.config.qk_norm
        return _Layer(
            input_norm=get(f"{prefix}input_layernorm.weight"),
            qkv=PackedLinear(
                torch.cat([get(f"{attention}{name}_proj.weight") for name in "qkv"]), bias
            ),
            q_norm=get(f"{attention}q_norm.weight") if normed else None,
            k_norm=get(f"{attention}k_norm.weight") if normed else None,
            o=PackedLinear(get(f"{attention}o_proj.weight")),
            post_norm=get(f"{prefix}post_attention_layernorm.weight"),
            gate_up=PackedLinear(
                torch.cat([get(f"{mlp}{name}_proj.weight") for name in ("gate", "up")])
            ),
            down=PackedLinear(get(f"{mlp}down_proj.weight")),
        )


@dataclass(frozen=True, slots=True)
class _Weights:
    """A checkpoint read in the model's type and on its device."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device

    def get(self, name: str) -> torch.Tensor:
        tensor = self.checkpoint.tensor(name)
        return tensor.to(device=self.device, dtype=self.dtype).contiguous()


def rope_frequencies(config: ModelConfig, model_id: str) -> torch.Tensor:
    """Returns the angle of each pair of dimensions per position: [head_dim / 2] float32.

    Raises:
        OctavoError: MODEL_UNREADABLE, naming a scaling that is not known.
    """
    exponents = torch.arange(0, config.head_dim, 2).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling or {}
    kind = scaling.get("rope_type", "default")
    if kind in ("default", "none"):
        return frequencies
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    raise OctavoError(
        MODEL_UNREADABLE, path=model_id, reason=f"its rotary scaling '{kind}' is not known"
    )


def _llama3_frequencies(
    frequencies: torch.Tensor, scaling: Mapping[str, float | str]
) -> torch.Tensor:
    """Slows low frequencies by the factor, keeps high ones, blends those between."""
    factor = float(scaling["factor"])
    low = float(scaling["low_freq_factor"])
    high = float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies
