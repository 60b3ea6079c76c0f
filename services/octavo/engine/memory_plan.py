"""How many KV blocks an engine gets, and how long a request may be. Pure: memory is an argument."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.config import EngineConfig
from octavo.v1.block_hash import BLOCK_TOKENS
from octavo.v1.errors import DOES_NOT_FIT, OctavoError

_MIN_BLOCKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The outcome."""

    num_blocks: int
    """Allocatable blocks, without the null block."""
    max_model_len: int
    kv_bytes: int
    host_blocks: int = 0
    """Blocks of host memory, without a null block."""
    host_bytes: int = 0

    def describe(self) -> str:
        """One line for people."""
        tokens = self.num_blocks * BLOCK_TOKENS
        host = f" · host {self.host_bytes / 1e9:.2f} GB = {self.host_blocks:,} blocks"
        return (
            f"KV {self.kv_bytes / 1e9:.2f} GB = {self.num_blocks:,} blocks of {BLOCK_TOKENS},"
            f" {tokens / self.max_model_len:.1f} x {self.max_model_len:,} tokens at once"
            f"{host if self.host_blocks else ''}"
        )


def plan_memory(
    config: EngineConfig, *, free_bytes: int, bytes_per_block: int, model_max_len: int
) -> MemoryPlan:
    """Divides the free memory.

    Args:
        config: kv_bytes or memory_fraction, max_model_len, max_num_seqs, host_cache_bytes.
        free_bytes: memory that is free after loading the weights.
        bytes_per_block: one KV block, all layers.
        model_max_len: longest context of the model in tokens.

    Raises:
        OctavoError: DOES_NOT_FIT when the pool is too small for what was asked, or host memory
            for both.
    """
    max_len = min(config.max_model_len or model_max_len, model_max_len)
    per_request = -(-max_len // BLOCK_TOKENS)
    budget = config.kv_bytes or int(free_bytes * config.memory_fraction)
    blocks = budget // bytes_per_block - 1  # the null block holds memory, too
    if not config.kv_bytes:
        blocks = min(blocks, per_request * config.max_num_seqs)
    least = per_request if config.max_model_len else _MIN_BLOCKS
    needed = (max(least, _MIN_BLOCKS) + 1) * bytes_per_block
    if blocks < max(least, _MIN_BLOCKS) or budget > free_bytes:
        needs = f"KV cache of at least {max(needed, config.kv_bytes) / 1e9:.2f} GB"
        raise OctavoError(DOES_NOT_FIT, needs=needs, free=f"{free_bytes / 1e9:.2f} GB")
    host = config.host_cache_bytes
    if host and (host < 2 * bytes_per_block or budget + host > free_bytes):
        both = max(budget + host, budget + 2 * bytes_per_block)
        needs = f"KV cache and host cache of at least {both / 1e9:.2f} GB"
        raise OctavoError(DOES_NOT_FIT, needs=needs, free=f"{free_bytes / 1e9:.2f} GB")
    return MemoryPlan(
        num_blocks=blocks,
        max_model_len=min(max_len, blocks * BLOCK_TOKENS),
        kv_bytes=(blocks + 1) * bytes_per_block,
        host_blocks=max(host // bytes_per_block - 1, 0),
        host_bytes=host // bytes_per_block * bytes_per_block,
    )
