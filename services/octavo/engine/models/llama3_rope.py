"""Rotary scaling of Llama 3.1 and later, recognised from the factors that GGUF stores.

A config.json gives four numbers; GGUF gives the result, one divisor per pair of dimensions. All
models published with it keep three of the numbers, so the fourth is read from the largest divisor
and the rest is checked: any other table is refused.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final

from octavo.engine.models.config import ModelConfig
from octavo.engine.models.fields import UnreadableError

LOW_FREQ_FACTOR: Final = 1.0
HIGH_FREQ_FACTOR: Final = 4.0
ORIGINAL_CONTEXT: Final = 8192.0


def llama3_factors(*, head_dim: int, theta: float, factor: float) -> list[float]:
    """Returns by how much each of the head_dim / 2 frequencies is divided."""
    factors = []
    for i in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * i / head_dim)
        turns = ORIGINAL_CONTEXT / wavelength
        blend = (turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)
        blend = min(1.0, max(0.0, blend))
        factors.append(1.0 / (blend + (1.0 - blend) / factor))
    return factors


def with_factors(config: ModelConfig, stored: Sequence[float]) -> ModelConfig:
    """Returns the config with the scaling that has these factors.

    Raises:
        UnreadableError: the factors are not of this scaling.
    """
    factor = max(stored)
    wanted = llama3_factors(head_dim=config.head_dim, theta=config.rope_theta, factor=factor)
    close = all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(stored, wanted, strict=True))
    if not close or not 1.0 <= factor <= 1024.0:
        raise UnreadableError("tensor rope_freqs.weight is not the scaling of Llama 3.1")
    return dataclasses.replace(
        config,
        rope_scaling={
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LOW_FREQ_FACTOR,
            "high_freq_factor": HIGH_FREQ_FACTOR,
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
        },
    )
