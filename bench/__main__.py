"""Measures a running server, alone or in turns with others: `python -m bench --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import psutil
import uvloop

from bench.answer import read_answer
from bench.client import Endpoint, PromptForm, drive, first_model
from bench.machine import Machine, Meter, memory_of, read_machine
from bench.report import line, table
from bench.result import Result, summarise
from bench.workloads import BY_NAME, Words, Workload
from octavo.v1.errors import OctavoError

_WARM_UP: Final = (("W1", 1), ("W2", 16))
"""Sent to each server before the runs: so many requests of each, or fewer under a limit."""

_UNMEASURABLE: Final = (
    aiohttp.ClientError,
    msgspec.MsgspecError,
    psutil.Error,
    OctavoError,
    OSError,
    ValueError,
)
"""No server, no such process, no tokenizer, no place for the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to measure."""

    name: str
    url: str
    pid: int | None = None
    """Root of its process tree on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """All that one call measured."""

    machine: Machine
    seed: int
    results: tuple[Result, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 1 when any request failed, 2 when a server cannot be measured."""
    options = _parser().parse_args(arguments)
    targets = [Target(name=options.name, url=options.url, pid=options.pid), *options.compare]
    if len({target.name for target in targets}) < len(targets):
        print("bench: each server needs a name of its own (--name, --compare)", file=sys.stderr)
        return 2
    try:
        session = _measure_all(options, targets)
        for target in targets:
            for part in memory_of(target.pid) if target.pid else []:
                print(f"{target.name}: {part.peak_rss_mib:.0f} MiB peak  {part.command}")
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(session), indent=1))
    except _UNMEASURABLE as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 1 if any(result.errors for result in session.results) else 0


def _measure_all(options: argparse.Namespace, targets: Sequence[Target]) -> Session:
    machine = read_machine()
    print(f"{machine}; seed {options.seed}", flush=True)
    words = Words(_tokenizer_json(options.tokenizer))
    endpoints = {target: _endpoint(target, options) for target in targets}

    def measure(target: Target, name: str, run: int, limit: int) -> Result:
        # Two servers may share engines, so not even they are given the same words.
        salt = f"{options.seed} {run} {target.name}"
        workload = BY_NAME[name](words, salt).first(limit)
        return _measure(target, endpoints[target], workload, run)

    for target in targets:
        for name, count in _WARM_UP:
            measure(target, name, 0, min(count, options.limit or count))
    results: list[Result] = []
    for name in options.workloads:
        for run in range(1, options.runs + 1):
            # Whoever comes first may find the machine cooler: take turns.
            for target in targets if run % 2 else reversed(targets):
                results.append(measure(target, name, run, options.limit))
                print(line(results[-1]), flush=True)
        of_workload = [result for result in results if result.workload == name]
        print(f"\n{table(of_workload)}\n", flush=True)
    return Session(machine=machine, seed=options.seed, results=tuple(results))


def _measure(target: Target, endpoint: Endpoint, workload: Workload, run: int) -> Result:
    meter = Meter(target.pid)
    exchanges = uvloop.run(drive(endpoint, workload))
    load = meter.read()
    pairs = zip(exchanges, workload.items, strict=True)
    answers = [read_answer(exchange, item) for exchange, item in pairs]
    return summarise(answers, target=target.name, workload=workload.name, run=run, load=load)


def _endpoint(target: Target, options: argparse.Namespace) -> Endpoint:
    model = options.model or uvloop.run(first_model(target.url))
    return Endpoint(url=target.url, model=model, form=options.prompt, timeout_s=options.timeout)


def _tokenizer_json(path: Path | None) -> bytes:
    if path is not None:
        return (path / "tokenizer.json" if path.is_dir() else path).read_bytes()
    # Imported only here: it brings torch, which a run with --tokenizer does without.
    from octavo.engine.models.checkpoint import open_checkpoint
    from octavo.engine.models.resolve import resolve

    return open_checkpoint(resolve("smollm2")).tokenizer_json


def _target(text: str) -> Target:
    name, _, rest = text.partition("=")
    url, _, pid = rest.partition(",")
    if not name or not url or (pid and not pid.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL or NAME=URL,PID")
    return Target(name=name, url=_url(url), pid=int(pid) if pid else None)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an http URL")
    return text.rstrip("/").removesuffix("/v1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures OpenAI-compatible servers; docs/performance.md explains the numbers.",
    )
    add = parser.add_argument
    add("--url", type=_url, default="http://127.0.0.1:8000", help="server to measure")
    add("--name", default="octavo", help="what it is called in the tables")
    add("--pid", type=int, help="root of its process tree: adds CPU, memory, foreign load")
    add("--compare", type=_target, nargs="+", default=[], metavar="NAME=URL[,PID]",
        help="other servers, measured in turns with the first")  # fmt: skip
    add("--workloads", nargs="+", choices=BY_NAME, default=list(BY_NAME), help="default: all")
    add("--runs", type=int, default=3, help="runs of each workload, each with new prompts")
    add("--limit", type=int, default=0, help="only the first requests of each; 0: all")
    add("--prompt", type=PromptForm, choices=list(PromptForm), default=PromptForm.IDS,
        help="token ids, text, or chat messages")  # fmt: skip
    add("--model", default="", help="default: the first that each server lists")
    add("--tokenizer", type=Path, help="tokenizer.json or its folder; default: SmolLM2's")
    add("--seed", type=int, default=int(time.time()), help="of the words; default: the time")
    add("--timeout", type=float, default=900.0, help="seconds that one request may take")
    add("--json", type=Path, help="write all runs there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
