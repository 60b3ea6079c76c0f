"""The factors equal those that transformers computes from the four numbers."""

from __future__ import annotations

import pytest
import torch
import transformers

from octavo.engine.models.llama3_rope import llama3_factors


@pytest.mark.parametrize(("head_dim", "factor"), [(128, 8.0), (64, 32.0)])
def test_factors_equal_transformers(head_dim: int, factor: float) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.LlamaConfig(
        hidden_size=head_dim * 4,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    theirs, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    ours = plain / torch.tensor(
        llama3_factors(head_dim=head_dim, theta=500000.0, factor=factor), dtype=torch.float64
    )
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-5, atol=0)
