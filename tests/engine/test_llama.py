"""The Llama family against transformers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.engine.random_checkpoint import VOCAB, RandomCheckpoint, random_checkpoint

from octavo.engine.models.llama import Llama, Ragged, rope_frequencies
from octavo.kernels import kv_pool
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError

LLAMA3 = {
    "rope_theta": 10000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILY: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", {}),
    "untied": ("Llama", {"tie_word_embeddings": False}),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}},
    ),
    "llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {"head_dim": 16}),
    "qwen3": ("Qwen3", {}),
}
TOKENS = [(i * 37 + 5) % VOCAB for i in range(150)]


def run(checkpoint: RandomCheckpoint, dtype: torch.dtype) -> torch.Tensor:
    """Returns the logits of TOKENS, computed in one step."""
    config = checkpoint.config
    with torch.inference_mode():
        model = Llama(checkpoint, dtype=dtype, device=torch.device("cpu"))
        model.reserve_positions(len(TOKENS))
        num_blocks = -(-len(TOKENS) // 16)
        page = kv_pool.page_shape(
            layers=config.num_layers,
            kv_heads=config.num_kv_heads,
            block_tokens=16,
            head_dim=config.head_dim,
        )
        positions = torch.arange(len(TOKENS))
        batch = Ragged(
            tokens=torch.tensor(TOKENS),
            positions=positions,
            slots=positions,
            block_tables=torch.arange(num_blocks).int()[None],
            query_starts=torch.tensor([0, len(TOKENS)]).int(),
            first_positions=torch.tensor([0]).int(),
        )
        pool = torch.full((num_blocks, *page), torch.nan, dtype=dtype)
        return model.logits(model.forward(batch, pool))


@pytest.mark.parametrize(("architecture", "changes"), FAMILY.values(), ids=FAMILY.keys())
def test_logits_equal_those_of_transformers(architecture: str, changes: dict[str, object]) -> None:
    checkpoint = random_checkpoint(architecture, **changes)
    with torch.inference_mode():
        expected = checkpoint.model(torch.tensor([TOKENS])).logits[0]
    assert expected.std() > 0.5
    torch.testing.assert_close(run(checkpoint, torch.float32), expected, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_nearer_to_float32_than_transformers_bfloat16() -> None:
    checkpoint = random_checkpoint()
    tokens = torch.tensor([TOKENS])
    with torch.inference_mode():
        expected = checkpoint.model(tokens).logits[0]
        ours = (run(checkpoint, torch.bfloat16) - expected).abs()
        theirs = (checkpoint.model.bfloat16()(tokens).logits[0].float() - expected).abs()
    assert 0 < ours.mean() < theirs.mean()


def test_an_unknown_rotary_scaling_is_refused_by_name() -> None:
    config = dataclasses.replace(
        random_checkpoint().config, rope_scaling={"rope_type": "yarn", "factor": 2.0}
    )
    with pytest.raises(OctavoError, match="yarn") as caught:
        rope_frequencies(config, "some/model")
    assert caught.value.kind is MODEL_UNREADABLE


def test_the_rotary_table_does_not_depend_on_how_it_grew() -> None:
    checkpoint = random_checkpoint()
    short, long = (
        Llama(checkpoint, dtype=torch.float32, device=torch.device("cpu")) for _ in range(2)
    )
    long.reserve_positions(5000)
    for count in (1, 1025, 3000, 5000):
        short.reserve_positions(count)
    assert len(long.rope_table) >= 5000
    assert torch.equal(short.rope_table, long.rope_table)


def test_num_bytes_counts_each_matrix_once() -> None:
    checkpoint = random_checkpoint()
    half, full = (
        Llama(checkpoint, dtype=dtype, device=torch.device("cpu")).num_bytes
        for dtype in (torch.bfloat16, torch.float32)
    )
    hidden, inner = 96, 144
    layer = hidden * (6 + 2 + 2) * 16 + 6 * 16 * hidden + 3 * hidden * inner
    content = 2 * (3 * layer + 2 * VOCAB * hidden)
    assert full == 2 * half
    assert content <= half < 1.6 * content  # 96 and 144 outputs are padded to 128 and 192
