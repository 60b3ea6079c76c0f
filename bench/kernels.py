"""Times each kernel on SmolLM2's shapes: `python bench/kernels.py [--threads N] [--seconds S]`.

Prints the best of the repeats, which on a busy machine is the only number that means something.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from octavo.kernels import kv_pool, native
from octavo.kernels.linear import Backend, PackedLinear
from octavo.kernels.paged_attention import paged_attention
from octavo.kernels.rms_norm import rms_norm
from octavo.kernels.rope_kv_write import rope_kv_write
from octavo.kernels.silu_mul import silu_mul

HIDDEN, INNER, VOCAB, HEADS, KV_HEADS, HEAD_DIM, BLOCK = 576, 1536, 49152, 9, 3, 64, 16
ROW_SIZE = (HEADS + 2 * KV_HEADS) * HEAD_DIM
LINEARS = {
    "qkv": (ROW_SIZE, HIDDEN),
    "o": (HIDDEN, HEADS * HEAD_DIM),
    "gate_up": (2 * INNER, HIDDEN),
    "down": (HIDDEN, INNER),
    "lm_head": (VOCAB, HIDDEN),
}
# (first position, queries) of each request
ATTENTION = {
    "prefill 512": [(0, 512)],
    "prefill 512 after 1024": [(1024, 512)],
    "decode 1 x 256": [(255, 1)],
    "decode 32 x 256": [(255, 1)] * 32,
    "decode 8 x 2000": [(1999, 1)] * 8,
}


def best_seconds(work: Callable[[], object], budget_s: float) -> float:
    """Returns the shortest of the runs that fit the budget."""
    work()
    times: list[float] = []
    while sum(times) < budget_s or len(times) < 3:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def report(name: str, seconds: float, *, flops: float, num_bytes: float) -> None:
    """Prints one line."""
    rates = f"{flops / seconds / 1e9:8.1f} GFLOP/s {num_bytes / seconds / 1e9:7.1f} GB/s"
    print(f"{name:34} {seconds * 1e3:9.3f} ms {rates}", flush=True)


def bench_linears(dtype: torch.dtype, budget_s: float) -> None:
    """Native and oneDNN products from one row to a whole prompt chunk."""
    backends: tuple[Backend, ...] = ("native", "onednn")
    for name, (outputs, inputs) in LINEARS.items():
        weight = (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
        for backend in backends:
            linear = PackedLinear(weight, backend=backend)
            for rows in (1, 8, 32, 256):
                x = torch.randn(rows, inputs).to(dtype)
                seconds = best_seconds(lambda f=linear, x=x: f(x), budget_s)  # type: ignore[misc]
                report(
                    f"{name} {backend} {rows}",
                    seconds,
                    flops=2.0 * rows * outputs * inputs,
                    num_bytes=weight.nbytes,
                )


def bench_attention(dtype: torch.dtype, budget_s: float) -> None:
    """Prompt chunks and decodes; each request has blocks of its own."""
    for name, requests in ATTENTION.items():
        lengths = [first + queries for first, queries in requests]
        width = -(-max(lengths) // BLOCK)
        page = kv_pool.page_shape(
            layers=1, kv_heads=KV_HEADS, block_tokens=BLOCK, head_dim=HEAD_DIM
        )
        pool = torch.randn(len(requests) * width, *page).to(dtype)
        tables = torch.arange(len(pool), dtype=torch.int32).view(len(requests), width)
        starts = torch.tensor([0, *(queries for _, queries in requests)]).cumsum(0).int()
        qkv = torch.randn(int(starts[-1]), ROW_SIZE)
        seconds = best_seconds(
            lambda qkv=qkv, pool=pool, tables=tables, starts=starts, requests=requests: (  # type: ignore[misc]
                paged_attention(
                    qkv,
                    pool,
                    0,
                    head_dim=HEAD_DIM,
                    block_tables=tables,
                    query_starts=starts,
                    first_positions=torch.tensor([first for first, _ in requests]).int(),
                    scale=HEAD_DIM**-0.5,
                )
            ),
            budget_s,
        )
        keys = sum(sum(range(first + 1, first + n + 1)) for first, n in requests)
        kv_bytes = sum(lengths) * 2 * KV_HEADS * HEAD_DIM * pool.itemsize
        report(name, seconds, flops=4.0 * keys * HEADS * HEAD_DIM, num_bytes=kv_bytes)


def bench_elementwise(dtype: torch.dtype, budget_s: float) -> None:
    """What is bound by memory and by the cost of a call."""
    for rows in (1, 32, 512):
        x, weight = torch.randn(rows, HIDDEN), torch.ones(HIDDEN).to(dtype)
        residual = torch.zeros(rows, HIDDEN)
        gate_up = torch.randn(rows, 2 * INNER)
        qkv = torch.randn(rows, ROW_SIZE)
        table = torch.randn(rows, HEAD_DIM)
        positions = torch.arange(rows)
        pool = torch.zeros(
            rows // BLOCK + 1,
            *kv_pool.page_shape(layers=1, kv_heads=KV_HEADS, block_tokens=BLOCK, head_dim=HEAD_DIM),
            dtype=dtype,
        )
        work: dict[str, tuple[Callable[[], object], int]] = {
            "rms_norm": (
                lambda x=x, w=weight, r=residual: rms_norm(x, w, eps=1e-5, residual=r),  # type: ignore[misc]
                2 * x.nbytes + 2 * residual.nbytes,
            ),
            "silu_mul": (
                lambda g=gate_up: silu_mul(g, dtype=dtype),  # type: ignore[misc]
                gate_up.nbytes + gate_up.numel() // 2 * dtype.itemsize,
            ),
            "rope_kv_write": (
                lambda q=qkv, p=pool, t=table, i=positions: rope_kv_write(  # type: ignore[misc]
                    q, p, 0, rope_table=t, positions=i, slots=i
                ),
                2 * qkv.nbytes,
            ),
        }
        for name, (call, num_bytes) in work.items():
            report(f"{name} {rows}", best_seconds(call, budget_s), flops=0.0, num_bytes=num_bytes)


def main() -> None:
    """Runs all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.2, help="for each line")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = torch.bfloat16 if arguments.dtype == "bfloat16" else torch.float32
    print(f"{native.cpu_info()[0]} {native.isa()}, {arguments.threads} threads, {dtype}")
    bench_attention(dtype, arguments.seconds)
    bench_elementwise(dtype, arguments.seconds)
    bench_linears(dtype, arguments.seconds)


if __name__ == "__main__":
    main()
