"""Tables of results: medians with range, and how the first server compares with each other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.result import Result

BLANK: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One row of a table."""

    label: str
    value: Callable[[Result], float | None]
    digits: int = 1
    higher_is_better: bool | None = False
    """None: neither, so no comparison is shown."""

    def ratio(self, first: Result, other: Result) -> float | None:
        """Returns how many times better the first is; None where that has no meaning."""
        ours, theirs = self.value(first), self.value(other)
        if not ours or not theirs or self.higher_is_better is None:
            return None
        return ours / theirs if self.higher_is_better else theirs / ours


METRICS: Final = (
    Metric(label="output tok/s", value=lambda r: r.output_tokens_per_s, higher_is_better=True),
    Metric(label="TTFT mean ms", value=lambda r: r.ttft_ms.mean),
    Metric(label="TTFT p50 ms", value=lambda r: r.ttft_ms.p50),
    Metric(label="TTFT p99 ms", value=lambda r: r.ttft_ms.p99),
    Metric(label="ITL p50 ms", value=lambda r: r.itl_ms.p50),
    Metric(label="ITL p99 ms", value=lambda r: r.itl_ms.p99),
    Metric(label="TPOT p50 ms", value=lambda r: r.tpot_ms.p50),
    Metric(label="E2E p50 ms", value=lambda r: r.e2e_ms.p50, digits=0),
    Metric(label="E2E p99 ms", value=lambda r: r.e2e_ms.p99, digits=0),
    Metric(label="run s", value=lambda r: r.duration_s),
    Metric(label="cached tokens", value=lambda r: r.cached_tokens, digits=0, higher_is_better=None),
    Metric(label="server CPU s", value=lambda r: r.load.server_cpu_s),
    Metric(
        label="client CPU s",
        value=lambda r: r.load.client_cpu_s,
        digits=2,
        higher_is_better=None,
    ),
    Metric(
        label="foreign cores",
        value=lambda r: r.load.foreign_cores,
        digits=2,
        higher_is_better=None,
    ),
    Metric(label="peak RSS MiB", value=lambda r: r.load.peak_rss_mib, digits=0),
    Metric(label="errors", value=lambda r: r.errors, digits=0, higher_is_better=None),
    Metric(label="short outputs", value=lambda r: r.short_outputs, digits=0, higher_is_better=None),
)


def line(result: Result) -> str:
    """Returns one run in one line, for the time until the tables come."""
    text = (
        f"{result.workload} run {result.run} {result.target}: "
        f"{result.output_tokens_per_s:.1f} tok/s, TTFT p50 {_number(result.ttft_ms.p50)} ms, "
        f"TPOT p50 {_number(result.tpot_ms.p50)} ms, {result.duration_s:.1f} s"
    )
    if result.short_outputs:
        text += f", {result.short_outputs} answers too short"
    if result.errors:
        text += f", {result.errors} of {result.requests} failed: {result.first_error}"
    return text


def table(results: Sequence[Result]) -> str:
    """Returns the table of one workload: a row for each metric, a column for each server.

    The first server met is compared with each other, run by run: runs of one number follow one
    another, so that a machine that changes its speed changes it for both.
    """
    by_target: dict[str, list[Result]] = {}
    for result in results:
        by_target.setdefault(result.target, []).append(result)
    first, *others = by_target
    rows = [
        [results[0].workload, *by_target, *(f"{first}: better than {other} by" for other in others)]
    ]
    for metric in METRICS:
        measured = [[metric.value(r) for r in runs] for runs in by_target.values()]
        if all(value is None for values in measured for value in values):
            continue
        ratios = [_ratios(metric, by_target[first], by_target[other]) for other in others]
        cells = [_cell(values, metric.digits) for values in measured]
        rows.append([metric.label, *cells, *(_cell(values, 2) for values in ratios)])
    return _aligned(rows)


def _ratios(metric: Metric, first: Sequence[Result], other: Sequence[Result]) -> list[float | None]:
    return [metric.ratio(ours, theirs) for ours, theirs in zip(first, other, strict=False)]


def _cell(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return BLANK
    median = _number(statistics.median(known), digits)
    low, high = _number(min(known), digits), _number(max(known), digits)
    return median if low == high else f"{median} ({low}-{high})"


def _number(value: float | None, digits: int = 1) -> str:
    return BLANK if value is None else f"{value:.{digits}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = (
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    )
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([head, rule, *body])
