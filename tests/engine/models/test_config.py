"""A config is read as Hugging Face means it; what we do not compute is refused by name."""

from __future__ import annotations

import dataclasses

import pytest
import transformers
from tests.engine.models.tiny_model import CONFIG, weights

from octavo.engine.models.config import ModelConfig, from_gguf, from_hugging_face
from octavo.engine.models.fields import UnreadableError


def test_a_llama_config_is_read() -> None:
    config = from_hugging_face(CONFIG)
    assert config == ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=267,
        max_position=512,
        rope_theta=10000.0,
        rope_scaling=None,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_bias=False,
        qk_norm=False,
    )
    assert config.tensor_shapes() == {n: tuple(t.shape) for n, t in weights().items()}


@pytest.mark.parametrize(
    ("family", "options", "bias", "qk_norm"),
    [
        ("Llama", {}, False, False),
        ("Mistral", {"sliding_window": None}, False, False),
        ("Qwen2", {}, True, False),
        ("Qwen3", {}, False, True),
    ],
    ids=["llama", "mistral", "qwen2", "qwen3"],
)
def test_configs_that_transformers_writes_are_read(
    family: str, options: dict[str, object], bias: bool, qk_norm: bool
) -> None:
    theirs: transformers.PreTrainedConfig = getattr(transformers, f"{family}Config")(**options)
    name = f"{family}ForCausalLM"
    theirs.architectures = [name]
    config = from_hugging_face(theirs.to_dict())
    assert (config.architecture, config.attention_bias, config.qk_norm) == (name, bias, qk_norm)
    assert config.rope_theta == 10000.0
    assert config.hidden_size == theirs.hidden_size


def test_rope_scaling_is_read_in_both_spellings() -> None:
    numbers: dict[str, object] = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    old = {**CONFIG, "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **numbers}}
    new = {**CONFIG, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **numbers}}
    assert from_hugging_face(old) == from_hugging_face(new)
    scaling = from_hugging_face(old).rope_scaling
    assert scaling == {"rope_type": "llama3", **numbers}
    oldest = {**CONFIG, "rope_scaling": {"type": "linear", "factor": 2}}
    assert from_hugging_face(oldest).rope_scaling == {"rope_type": "linear", "factor": 2.0}
    plain = {**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert from_hugging_face(plain).rope_scaling is None
    assert from_hugging_face(plain).rope_theta == 1e6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"auto_map": {"AutoModel": "m.M"}}, "auto_map asks for code"),
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM'; known: Llama"),
        ({"architectures": [], "model_type": "gpt2"}, "known: LlamaForCausalLM"),
        ({"architectures": None, "model_type": None}, "known: LlamaForCausalLM"),
        ({"architectures": "LlamaForCausalLM"}, "is not a list of strings"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size = '64' is not a whole number"),
        ({"hidden_size": 64.0}, "hidden_size = 64.0 is not a whole number"),
        ({"hidden_size": True}, "hidden_size = True is not a whole number"),
        ({"hidden_size": -64}, "is not within 1"),
        ({"hidden_size": 2**62}, "is not within 1"),
        ({"hidden_size": 2**63}, "hidden_size has more than 64 bits"),
        ({"num_hidden_layers": 0}, "num_layers = 0 is not within 1"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0 is not positive"),
        ({"num_attention_heads": 3}, "hidden_size = 64 is not a multiple of 3 heads"),
        ({"num_key_value_heads": 3}, "4 heads, 3 KV heads: not a multiple"),
        ({"head_dim": 24}, "head_dim = 24 is not a multiple of 16"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is not finite"),
        ({"rope_theta": 0}, "rope_theta = 0.0 is not within"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn' is not"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "not positive"),
        ({"rope_scaling": [1]}, "not an object"),
        ({"sliding_window": 128}, "sliding_window = 128"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attention_bias": True}, "attention_bias = true"),
        ({"mlp_bias": True}, "mlp_bias = true"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not 1"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"tie_word_embeddings": "yes"}, "'yes' is not true or false"),
        ({"vocab_size": 1 << 30}, "vocab_size = 1073741824"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_computed_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(UnreadableError) as caught:
        from_hugging_face({**CONFIG, **change})
    assert reason in str(caught.value)


def test_a_window_that_is_off_or_never_reached_is_fine() -> None:
    from_hugging_face({**CONFIG, "sliding_window": 512})
    qwen = {**CONFIG, "architectures": ["Qwen2ForCausalLM"], "sliding_window": 128}
    from_hugging_face(qwen)
    with pytest.raises(UnreadableError, match="sliding_window"):
        from_hugging_face({**qwen, "use_sliding_window": True})


def test_a_long_foreign_value_is_cut_in_the_message() -> None:
    with pytest.raises(UnreadableError) as caught:
        from_hugging_face({**CONFIG, "architectures": ["x" * 100_000]})
    assert len(str(caught.value)) < 200


def test_untied_and_normed_models_have_their_tensors() -> None:
    config = from_hugging_face(CONFIG)
    qwen3 = dataclasses.replace(config, qk_norm=True, tie_word_embeddings=False)
    extra = qwen3.tensor_shapes().keys() - config.tensor_shapes().keys()
    assert "lm_head.weight" in extra
    assert qwen3.tensor_shapes()["model.layers.1.self_attn.k_norm.weight"] == (16,)
    biased = dataclasses.replace(config, attention_bias=True).tensor_shapes()
    assert biased["model.layers.0.self_attn.k_proj.bias"] == (32,)


def test_gguf_linear_scaling_is_read() -> None:
    metadata: dict[str, object] = {
        "general.architecture": "qwen3",
        "qwen3.context_length": 1024,
        "qwen3.embedding_length": 64,
        "qwen3.feed_forward_length": 96,
        "qwen3.block_count": 2,
        "qwen3.attention.head_count": 2,
        "qwen3.attention.key_length": 128,
        "qwen3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
        "qwen3.rope.scaling.type": "linear",
        "qwen3.rope.scaling.factor": 2.0,
    }
    config = from_gguf(metadata, vocab_size=100, tied=False, rope_factors=False)
    assert config.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    assert config.head_dim == 128
    assert config.num_kv_heads == 2
    assert config.qk_norm
    assert config.rms_norm_eps == 1e-6
    for change in ({"qwen3.rope.scaling.type": "yarn"}, {"general.architecture": "gemma"}):
        changed = {**metadata, **change}
        with pytest.raises(UnreadableError, match=r"'yarn' is not computed|'gemma'; known: llama"):
            from_gguf(changed, vocab_size=100, tied=False, rope_factors=False)
