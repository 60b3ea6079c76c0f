"""Beam search equals that of transformers, token for token, on the same weights in float32."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.engine import smollm2
from tests.engine.harness import Engine, generate
from tests.engine.random_checkpoint import RandomCheckpoint, random_checkpoint
from tests.engine.transformers_reference import Reference, reference_model
from tests.fakes import BLOCK, BYTE_VOCAB

from octavo.engine.core import EngineCore
from octavo.engine.model_runner import ModelRunner
from octavo.v1 import engine_pb2

pytestmark = pytest.mark.timeout(900)

EARLY: dict[bool | str, Any] = {False: 0, True: 1, "never": 2}
"""transformers' values and ours."""


def ours(
    core: EngineCore,
    prompt: Sequence[int],
    *,
    width: int,
    penalty: float,
    early: bool | str,
    length: int,
    n: int | None = None,
) -> list[list[int]]:
    """The outputs of the engine's choices."""
    proto = generate(prompt, n=n or width, max_tokens=length)
    proto.beam.width = width
    proto.beam.length_penalty = penalty
    proto.beam.early_stopping = EARLY[early]
    ticket = core.submit(proto, sink=None)
    while core.num_open:
        core.step()
        core.scheduler.check_integrity()
    return [choice.request.output_ids for choice in ticket.choices]


@torch.inference_mode()
def theirs(
    model: Any,
    prompt: Sequence[int],
    *,
    width: int,
    penalty: float,
    early: bool | str,
    length: int,
    eos: Sequence[int],
) -> list[list[int]]:
    """The outputs of transformers, without what pads the shorter ones."""
    made = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=length,
        do_sample=False,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        early_stopping=early,
        eos_token_id=list(eos) or None,
        pad_token_id=eos[0] if eos else 0,
    )
    outputs: list[list[int]] = []
    for row in made[:, len(prompt) :].tolist():
        end = next((i + 1 for i, token in enumerate(row) if token in eos), len(row))
        outputs.append(row[:end])
    return outputs


@pytest.fixture(scope="module")
def reference() -> Reference:
    return reference_model()


PROMPTS = [
    "The three largest cities of France are",
    "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.mark.parametrize(
    ("text", "width", "length", "penalty", "early"),
    [
        *((1, 4, 8, penalty, early) for penalty, early in zip((0.0, 1.0, 2.0), EARLY, strict=True)),
        *((0, 2, 6, penalty, early) for penalty, early in zip((2.0, 1.0, 0.0), EARLY, strict=True)),
    ],
)
def test_24_smollm2_finds_the_sequences_that_transformers_finds(
    reference: Reference, text: int, width: int, length: int, penalty: float, early: bool | str
) -> None:
    """Semantics 24."""
    prompt = smollm2.decoder().encode(PROMPTS[text], add_special_tokens=False).ids
    eos = smollm2.checkpoint().eos_token_ids
    how = {"width": width, "penalty": penalty, "early": early, "length": length}
    core = smollm2.new_core(dtype=torch.float32)
    wanted = theirs(reference.model, prompt, eos=eos, **how)  # type: ignore[arg-type]
    assert ours(core, prompt, **how) == wanted  # type: ignore[arg-type]


@functools.cache
def tiny() -> tuple[RandomCheckpoint, ModelRunner]:
    checkpoint = random_checkpoint("Llama", vocab_size=BYTE_VOCAB)
    runner = ModelRunner(checkpoint, dtype=torch.float32, block_tokens=BLOCK, max_batched_tokens=96)
    runner.allocate(257)
    return checkpoint, runner


def tiny_core(eos: Sequence[int], num_blocks: int = 256) -> EngineCore:
    runner: Any = tiny()[1]
    core = Engine(runner=runner, num_blocks=num_blocks).core
    core.model = dataclasses.replace(core.model, eos_token_ids=frozenset(eos))
    return core


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("num_eos", [0, 1, 12])
def test_24_long_searches_with_many_ends_find_what_transformers_finds(
    num_eos: int, penalty: float, early: bool | str
) -> None:
    """Semantics 24, with ends in most steps."""
    model, rng = tiny()[0].model, random.Random(f"{num_eos} {penalty} {early}")
    eos = rng.sample(range(BYTE_VOCAB), num_eos)
    prompt = rng.choices(range(256), k=rng.randint(1, 50))
    width = rng.choice([2, 3, 5])
    how = {"width": width, "penalty": penalty, "early": early, "length": 100 // width}
    wanted = theirs(model, prompt, eos=eos, **how)  # type: ignore[arg-type]
    assert ours(tiny_core(eos), prompt, **how) == wanted  # type: ignore[arg-type]


def test_25_a_preempted_search_finds_what_transformers_finds() -> None:
    """Semantics 25: recomputed beams have the same bits."""
    model, prompt = tiny()[0].model, list(range(40))
    wanted = theirs(model, prompt, width=4, penalty=1.0, early="never", length=50, eos=[])
    core = tiny_core([], num_blocks=26)
    proto = generate(prompt, n=4, max_tokens=50, priority=1)
    proto.beam.width = 4
    proto.beam.early_stopping = engine_pb2.EARLY_STOPPING_NEVER
    ticket = core.submit(proto, sink=None)
    for _ in range(30):
        core.step()
    core.submit(generate(list(range(200, 100, -1)) * 3, max_tokens=20), sink=None)
    while core.num_open:
        core.step()
    assert core.scheduler.num_preemptions == 1
    assert [choice.request.output_ids for choice in ticket.choices] == wanted
