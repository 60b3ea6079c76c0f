"""Paged attention against its reference, and its independence of everything around a query."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.tensors import DTYPES, AttentionCase, assert_close

from octavo.kernels import kv_pool
from octavo.kernels.dispatch import Implementation
from octavo.kernels.paged_attention import paged_attention

MIXED = AttentionCase(requests=((0, 1), (0, 70), (63, 1), (64, 2), (100, 33), (7, 1)))
CASES = {
    "one-token": AttentionCase(requests=((0, 1),)),
    "mixed": MIXED,
    "mixed-bfloat16": replace(MIXED, dtype=torch.bfloat16),
    "no-group": replace(MIXED, heads=2, kv_heads=2),
    "one-kv-head-of-32": replace(MIXED, heads=32, kv_heads=1, head_dim=16),
    "group-of-7": replace(MIXED, heads=14, kv_heads=2, head_dim=64),
    "head-80": replace(MIXED, head_dim=80, dtype=torch.bfloat16),
    "head-256": replace(MIXED, heads=2, kv_heads=1, head_dim=256),
    "block-48": replace(MIXED, block_tokens=48),
    "block-128-bfloat16": replace(MIXED, block_tokens=128, dtype=torch.bfloat16),
}


def attend(case: AttentionCase, force: Implementation) -> torch.Tensor:
    return attend_to(case, *case.build(), force=force)


def attend_to(
    case: AttentionCase,
    qkv: torch.Tensor,
    pool: torch.Tensor,
    tables: torch.Tensor,
    starts: torch.Tensor,
    firsts: torch.Tensor,
    *,
    force: Implementation = "native",
) -> torch.Tensor:
    return paged_attention(
        qkv,
        pool,
        case.layer,
        head_dim=case.head_dim,
        block_tables=tables,
        query_starts=starts,
        first_positions=firsts,
        scale=case.scale,
        force=force,
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_native_equals_reference_and_ignores_unwritten_slots(case: AttentionCase) -> None:
    expected = attend(case, "reference")
    assert expected.isfinite().all()
    assert_close(attend(case, "native"), expected)


def test_reference_equals_torch_attention() -> None:
    case = AttentionCase(requests=((0, 37),), heads=4, kv_heads=2)
    qkv = case.build()[0]
    q, k, v = (
        heads.transpose(0, 1)
        for heads in qkv.view(37, 8, case.head_dim).tensor_split([4, 6], dim=1)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True, scale=case.scale
    )
    assert_close(attend(case, "reference"), expected.transpose(0, 1).flatten(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_a_chunked_prompt_gives_the_same_bits(chunk: int, dtype: torch.dtype) -> None:
    whole = AttentionCase(requests=((0, 150),), heads=9, kv_heads=3, head_dim=64, dtype=dtype)
    expected = attend(whole, "native")
    pieces = [
        attend(replace(whole, requests=((first, min(chunk, 150 - first)),)), "native")
        if first + chunk >= 150
        else _piece(whole, first, chunk)
        for first in range(0, 150, chunk)
    ]
    assert torch.equal(torch.cat(pieces), expected)


def _piece(case: AttentionCase, first: int, queries: int) -> torch.Tensor:
    """Attends a chunk while nothing behind it has been written yet."""
    qkv, pool, tables, _, _ = case.build()
    unwritten = tables[0, (first + queries - 1) // case.block_tokens :]
    offset = (first + queries - 1) % case.block_tokens + 1
    for kv in (kv_pool.keys, kv_pool.values):
        layer = kv(pool, case.layer, case.head_dim)
        layer[unwritten[0], :, offset:] = torch.nan
        layer[unwritten[1:]] = torch.nan
    starts = torch.tensor([0, queries], dtype=torch.int32)
    firsts = torch.tensor([first], dtype=torch.int32)
    return attend_to(case, qkv[first : first + queries], pool, tables, starts, firsts)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neighbours_blocks_and_threads_do_not_change_a_bit(dtype: torch.dtype) -> None:
    # The content of a request follows from its place in the list, so the first stays the same.
    alone = AttentionCase(requests=((90, 20),), heads=9, kv_heads=3, head_dim=64, dtype=dtype)
    expected = attend(alone, "native")
    crowd = replace(alone, requests=((90, 20), *((i, 1 + i % 9) for i in range(40))), block_seed=5)
    assert torch.equal(attend(crowd, "native")[:20], expected)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if threads > 1 else 3)
    try:
        assert torch.equal(attend(crowd, "native")[:20], expected)
    finally:
        torch.set_num_threads(threads)


def test_scores_far_apart_do_not_overflow() -> None:
    case = AttentionCase(requests=((0, 130), (120, 1)), scale=40.0)
    torch.testing.assert_close(
        attend(case, "native"), attend(case, "reference"), rtol=1e-3, atol=1e-3
    )


def test_nan_in_a_request_stays_in_it() -> None:
    case = AttentionCase(requests=((30, 3), (30, 3)))
    expected = attend(case, "native")
    qkv, pool, tables, starts, firsts = case.build()
    kv_pool.keys(pool, case.layer, case.head_dim)[tables[1, 0]] = torch.nan
    actual = attend_to(case, qkv, pool, tables, starts, firsts)
    assert torch.equal(actual[:3], expected[:3])
    assert actual[3:].isnan().all()
