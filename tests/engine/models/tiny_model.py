"""A Llama of two layers, written as GGUF and as a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16

ALPHABET = sorted(ByteLevel.alphabet())
MERGES = ["t h", "h e", "th e", "Ġ the", "a n", "an d", "1 2", "12 3"]
MERGED = ["th", "he", "the", "Ġthe", "an", "and", "12", "123"]
TOKENS = ["<|end|>", "<|start|>", "<tool>", *ALPHABET, *MERGED]
KINDS = [3, 3, 4] + [1] * (len(TOKENS) - 3)

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": len(TOKENS),
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "bos_token_id": 1,
}

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def weights() -> dict[str, torch.Tensor]:
    """The tensors, float32, under Hugging Face's names."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {"model.embed_tokens.weight": draw(len(TOKENS), HIDDEN)}
    tensors["model.norm.weight"] = draw(HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{norm}.weight"] = draw(HIDDEN)
        tensors[f"{layer}self_attn.q_proj.weight"] = draw(HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{layer}self_attn.k_proj.weight"] = draw(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{layer}self_attn.v_proj.weight"] = draw(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[f"{layer}self_attn.o_proj.weight"] = draw(HIDDEN, HEADS * HEAD_DIM)
        tensors[f"{layer}mlp.gate_proj.weight"] = draw(INNER, HIDDEN)
        tensors[f"{layer}mlp.up_proj.weight"] = draw(INNER, HIDDEN)
        tensors[f"{layer}mlp.down_proj.weight"] = draw(HIDDEN, INNER)
    return tensors


def write_gguf(
    path: Path,
    *,
    quantization: gguf.GGMLQuantizationType | None = None,
    edit: Callable[[gguf.GGUFWriter], None] | None = None,
    pre: str = "smollm",
    extra: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] | None = None,
    without: str = "",
) -> Path:
    """Writes the model as llama.cpp's converter would; `edit` adds keys before the end."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)
    if edit:
        edit(writer)
    for name, tensor in weights().items():
        theirs = gguf_name(name)
        if theirs == without:
            continue
        array = interleaved(name, tensor).numpy()
        if quantization is not None and array.ndim == 2:
            packed = gguf.quants.quantize(array, quantization)
            writer.add_tensor(theirs, packed, raw_dtype=quantization)
        else:
            writer.add_tensor(theirs, array)
    for theirs, array in (extra or {}).items():
        writer.add_tensor(theirs, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm"}
    if name in fixed:
        return fixed[name].removesuffix(".weight") + ".weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[rest.removesuffix('.weight')]}.weight"


def interleaved(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Rows of q and k in llama.cpp's order: i-th pair at 2i and 2i + 1 of each head."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    out = torch.empty_like(tensor)
    for row in range(len(tensor)):
        head, within = divmod(row, HEAD_DIM)
        half, pair = divmod(within, HEAD_DIM // 2)
        out[head * HEAD_DIM + 2 * pair + half] = tensor[row]
    return out


def write_folder(
    path: Path,
    *,
    config: Mapping[str, object] | None = None,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
) -> Path:
    """Writes config.json, weights and a minimal tokenizer; more than one shard gets an index."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (path / "tokenizer.json").write_text('{"version": "1.0", "post_processor": null}')
    tensors = {name: tensor.to(dtype) for name, tensor in weights().items()}
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {name: f"model-{i % shards + 1:05}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, path / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
