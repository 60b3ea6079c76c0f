"""The real SmolLM2 behind a core, its weights loaded once a module."""

from __future__ import annotations

import functools
import itertools

import tokenizers
import torch
from prometheus_client import CollectorRegistry

from octavo.engine.block_manager import BlockManager
from octavo.engine.core import EngineCore
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.intake import Model
from octavo.engine.metrics import EngineMetrics
from octavo.engine.model_runner import ModelRunner
from octavo.engine.models.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.models.resolve import resolve
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.v1.block_hash import BLOCK_TOKENS
from octavo.v1.validation import Capacity

POOL_BLOCKS = 512


@functools.cache
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("smollm2", ""))


@functools.cache
def decoder() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(checkpoint().tokenizer_json.decode())


@functools.cache
def runner(dtype: torch.dtype = torch.bfloat16) -> ModelRunner:
    made = ModelRunner(checkpoint(), dtype=dtype, block_tokens=BLOCK_TOKENS, max_batched_tokens=512)
    made.allocate(POOL_BLOCKS + 1)
    return made


def new_core(
    *,
    num_blocks: int = POOL_BLOCKS,
    max_batched_tokens: int = 512,
    long_prefill_tokens: int = 512,
    prefix_caching: bool = True,
    dtype: torch.dtype = torch.bfloat16,
) -> EngineCore:
    """A fresh core, cold cache, on the shared weights and pool."""
    cache = PrefixCache(BlockManager(num_blocks + 1, BLOCK_TOKENS), enabled=prefix_caching)
    config = SchedulerConfig(
        max_num_seqs=32,
        max_batched_tokens=max_batched_tokens,
        long_prefill_tokens=long_prefill_tokens,
        watermark=0.0,
        max_queued_requests=100,
        max_queued_tokens=100_000,
    )
    ticks = itertools.count()

    def new_detokenizer(request: Request, *, chars_sent: int) -> Detokenizer:
        return Detokenizer(decoder(), request.prompt_ids, request.stop, chars_sent=chars_sent)

    return EngineCore(
        scheduler=Scheduler(config, cache),
        runner=runner(dtype),
        model=Model(
            served_names=("smollm2",),
            identity=b"smollm2",
            eos_token_ids=frozenset(checkpoint().eos_token_ids),
            capacity=Capacity(
                vocab_size=checkpoint().config.vocab_size,
                max_model_len=num_blocks * BLOCK_TOKENS,
                max_num_seqs=32,
                num_blocks=num_blocks,
                block_tokens=BLOCK_TOKENS,
            ),
        ),
        new_detokenizer=new_detokenizer,
        clock=lambda: next(ticks) * 1e-3,
        draw_seed=lambda: 0,
        metrics=EngineMetrics(CollectorRegistry(), "smollm2"),
    )
