"""Random inputs for kernel tests, and how close is close."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo.kernels import kv_pool

DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3}
"""Relative and absolute, for values of about one."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """Requests as (first position, number of queries), in a pool that is NaN where nothing is."""

    requests: tuple[tuple[int, int], ...]
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    block_tokens: int = 16
    layers: int = 2
    layer: int = 1
    scale: float = 0.2
    dtype: torch.dtype = torch.float32
    block_seed: int = 0
    """Where blocks lie; the content of a request does not depend on it."""

    def build(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns qkv, pool, block_tables, query_starts, first_positions."""
        lengths = [first + queries for first, queries in self.requests]
        counts = [-(-length // self.block_tokens) for length in lengths]
        page = kv_pool.page_shape(
            layers=self.layers,
            kv_heads=self.kv_heads,
            block_tokens=self.block_tokens,
            head_dim=self.head_dim,
        )
        pool = torch.full((sum(counts) + 3, *page), torch.nan, dtype=self.dtype)
        order = torch.randperm(
            sum(counts) + 2, generator=torch.Generator().manual_seed(self.block_seed)
        )
        tables = torch.full((len(counts), max(counts)), 2**30, dtype=torch.int32)
        columns = (self.heads + 2 * self.kv_heads) * self.head_dim
        rows = []
        used = 0
        for i, (first, queries) in enumerate(self.requests):
            blocks = 1 + order[used : used + counts[i]]
            tables[i, : counts[i]] = blocks.int()
            used += counts[i]
            content = random(lengths[i], columns, dtype=torch.float32, seed=i)
            self._fill(pool, blocks, content)
            rows.append(content[first:])
            assert len(rows[-1]) == queries
        starts = torch.tensor([0, *(queries for _, queries in self.requests)]).cumsum(0)
        firsts = torch.tensor([first for first, _ in self.requests])
        return torch.cat(rows), pool, tables, starts.int(), firsts.int()

    def _fill(self, pool: torch.Tensor, blocks: torch.Tensor, content: torch.Tensor) -> None:
        positions = torch.arange(len(content))
        where = blocks[positions // self.block_tokens], positions % self.block_tokens
        heads = content.to(self.dtype).view(len(content), -1, self.head_dim)[:, self.heads :]
        k, v = heads[:, : self.kv_heads], heads[:, self.kv_heads :]
        kv_pool.keys(pool, self.layer, self.head_dim)[where[0], :, where[1]] = k
        kv_pool.values(pool, self.layer, self.head_dim)[where[0], :, where[1]] = v
