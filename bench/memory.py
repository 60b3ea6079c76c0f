"""What memory costs: a pool too small for its load, and beams: `python -m bench.memory --help`.

Runs the engine's core in this process, without server and text. The same requests are answered with
memory for all of them and with a share of it, by swapping and by computing again, in turns; the
tokens have to be equal bit by bit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from octavo.engine.config import EngineConfig
from octavo.engine.core import Ticket
from octavo.engine.loading import LoadedEngine, Loading
from octavo.engine.metrics import EngineMetrics
from octavo.runtime.env import SystemEnv
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BLOCK_TOKENS

PROMPT, OUTPUT, REQUESTS = 160, 160, 24
"""Tokens of each prompt and output, and how many come at once."""
SHARE = 0.4
"""Of the memory that all of them need, what the small pool has."""
BEAM_PROMPT, BEAM_OUTPUT, WIDTH = 1000, 64, 4
BLOCK_BYTES = 30 * 2 * 3 * BLOCK_TOKENS * 64 * 2
"""SmolLM2 in bfloat16: layers, K and V, heads, tokens, dimensions, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a workload."""

    seconds: float
    outputs: list[list[int]]
    preemptions: int
    swaps: int
    most_blocks: int


def load(num_blocks: int, *, mode: str = "auto", host_cache_bytes: int = 0) -> LoadedEngine:
    """Returns an engine with so many blocks."""
    config = EngineConfig(
        kv_bytes=(num_blocks + 1) * BLOCK_BYTES,
        max_num_seqs=REQUESTS,
        preemption_mode=mode,
        host_cache_bytes=host_cache_bytes,
    )
    return Loading(
        config,
        env=SystemEnv(),
        epoch=1,
        report=lambda *_, **__: None,
        make_metrics=lambda name: EngineMetrics(CollectorRegistry(), name),
    ).run()


def request(number: int, length: int, output: int) -> engine_pb2.GenerateRequest:
    """A greedy or a seeded request with a prompt that no other one begins like."""
    proto = engine_pb2.GenerateRequest(request_id=str(number), max_tokens=output)
    proto.token_ids.ids.extend(1000 + (number * 7919 + i * 31) % 20000 for i in range(length))
    proto.stop.ignore_eos = True
    proto.sampling.seed = number
    proto.sampling.temperature = 0.0 if number % 2 else 0.8
    return proto


def run(engine: LoadedEngine, protos: Sequence[engine_pb2.GenerateRequest]) -> Run:
    """Answers all of them, which come at once, on an empty cache."""
    scheduler = engine.core.scheduler
    scheduler.cache.reset()
    before = scheduler.num_preemptions, scheduler.num_swaps
    begun, most = time.perf_counter(), 0
    tickets = [engine.core.submit(proto, None) for proto in protos]
    found: dict[tuple[Ticket, int], list[int]] = {}
    while engine.core.num_open:
        for ticket, delta in engine.core.step().deltas:
            found.setdefault((ticket, delta.choice), []).extend(delta.token_ids)
        cache = scheduler.cache
        most = max(most, cache.num_allocatable - cache.num_available)
    return Run(
        seconds=time.perf_counter() - begun,
        outputs=[found[t, c.index] for t in tickets for c in t.choices],
        preemptions=scheduler.num_preemptions - before[0],
        swaps=scheduler.num_swaps - before[1],
        most_blocks=most,
    )


def in_turns(sides: dict[str, Callable[[], Run]], repeats: int) -> dict[str, list[Run]]:
    """Runs all sides once as a warm-up, then each `repeats` times in turns."""
    for side in sides.values():
        side()
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            runs[name].append(side())
    return runs


def report(runs: dict[str, list[Run]], against: str) -> None:
    """Prints medians and their ratio to one side."""
    base = statistics.median(r.seconds for r in runs[against])
    for name, of in runs.items():
        seconds, last = statistics.median(r.seconds for r in of), of[-1]
        print(
            f"{name:28} {seconds:7.2f} s  {base / seconds:5.2f} of {against}'s speed  "
            f"{last.most_blocks:5} blocks  {last.preemptions:3} preempted, {last.swaps:3} swapped",
            flush=True,
        )


def bench_small_pool(repeats: int) -> bool:
    """Returns whether all tokens are equal."""
    need = REQUESTS * -(-(PROMPT + OUTPUT) // BLOCK_TOKENS)
    protos = [request(i, PROMPT, OUTPUT) for i in range(REQUESTS)]
    host = need * BLOCK_BYTES
    sides = {"whole": load(need)} | {
        f"{SHARE:.0%}, {mode}": load(int(need * SHARE), mode=mode, host_cache_bytes=host)
        for mode in ("recompute", "swap", "auto")
    }
    runs = in_turns({k: (lambda e=e: run(e, protos)) for k, e in sides.items()}, repeats)  # type: ignore[misc]
    report(runs, "whole")
    answers = [r.outputs for of in runs.values() for r in of]
    return all(outputs == answers[0] for outputs in answers)


def bench_choices(repeats: int) -> None:
    """Several choices against one, and beams against as many choices."""
    engine = load(1000)

    def ask(n: int, *, beams: bool = False) -> Callable[[], Run]:
        proto = request(2, BEAM_PROMPT, BEAM_OUTPUT)
        proto.n = n
        if beams:
            proto.ClearField("sampling")
            proto.beam.width = n
        return lambda: run(engine, [proto])

    sides = {"n=1": ask(1), f"n={WIDTH}": ask(WIDTH), f"{WIDTH} beams": ask(WIDTH, beams=True)}
    report(in_turns(sides, repeats), f"n={WIDTH}")


def main() -> int:
    """Runs both; returns 1 when tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    equal = bench_small_pool(repeats)
    print(f"tokens are {'equal' if equal else 'DIFFERENT'}", flush=True)
    bench_choices(repeats)
    return 0 if equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
