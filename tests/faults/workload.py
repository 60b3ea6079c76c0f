"""Requests whose answers must not depend on what happens around them, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeAlias

from tests.faults.tiny_llama import MODEL

Body: TypeAlias = dict[str, Any]

_VARIANTS: Sequence[Body] = (
    {"temperature": 0},
    {"temperature": 0.9, "seed": 11, "top_p": 0.95},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1.2, "seed": 2**61, "top_k": 40, "min_tokens": 1, "stop": ["k", "~~"]},
    {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.3},
    {"temperature": 0.8, "seed": 3, "presence_penalty": 0.4, "logprobs": 0},
    {"temperature": 0.7, "seed": 5, "min_p": 0.02, "n": 2},
    {"temperature": 0, "stop": ["Q"], "include_stop_str_in_output": True, "min_tokens": 1},
    {"temperature": 1.0, "seed": 9, "bad_words": ["e"], "logit_bias": {"32": 1.5}},
    {"temperature": 0.6, "seed": 77},
)
"""Greedy and seeded in turn; together they use everything that a resumed choice must keep.

Minima become a third of the length."""


def body(seed: int, tokens: int, **fields: Any) -> Body:
    """Returns a streaming completion request; the variant goes by the seed."""
    rng = random.Random(seed)
    variant = dict(_VARIANTS[seed % len(_VARIANTS)])
    if "min_tokens" in variant:
        variant["min_tokens"] = tokens // 3
    prompt = [rng.randrange(256) for _ in range(rng.randrange(8, 200))]
    return {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        **variant,
        **fields,
    }


def bodies(count: int, tokens: int, *, first: int = 0) -> list[Body]:
    """Returns requests of all variants."""
    return [body(first + i, tokens) for i in range(count)]


TOXIN = [201, 13, 250, 99, 201, 14]
"""Ids that no other prompt holds."""


def poisoned_by_toxin(action: str) -> dict[str, str]:
    """Returns the environment of a program that does something in each step with these ids."""
    return {"OCTAVO_FAILPOINTS": f"engine.row={action}?{','.join(map(str, TOXIN))}"}
