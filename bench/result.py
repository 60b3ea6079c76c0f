"""Numbers of one measurement, out of its answers. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.answer import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A distribution of times, in milliseconds; all None when there were none."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a measurement took from the machine."""

    client_cpu_s: float
    server_cpu_s: float | None = None
    """Of the server's process tree; None when its process is not known."""
    foreign_cores: float | None = None
    """Cores that were busy with neither server nor client, on average."""
    peak_rss_mib: float | None = None
    """Largest resident set of each process of the server so far, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one workload against one server."""

    target: str
    workload: str
    run: int
    requests: int
    errors: int
    first_error: str
    short_outputs: int
    """Answers with fewer tokens than were asked for: this server did less work."""
    duration_s: float
    """From the first sending to the last answer's end."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: Spread
    """From sending to the first event with text."""
    itl_ms: Spread
    """Between events with text that follow one another in one answer."""
    tpot_ms: Spread
    """Of each answer, from first to last event with text, a token after the first."""
    e2e_ms: Spread
    """From sending to the stream's end."""
    load: Load


def summarise(
    answers: Sequence[Answer], *, target: str, workload: str, run: int, load: Load
) -> Result:
    """Returns the numbers of a run. Failed requests count as errors and in no time."""
    whole = [answer for answer in answers if not answer.error]
    failed = [answer for answer in answers if answer.error]
    duration_s = duration(answers)
    output_tokens = sum(answer.output_tokens for answer in whole)
    return Result(
        target=target,
        workload=workload,
        run=run,
        requests=len(answers),
        errors=len(failed),
        first_error=failed[0].error if failed else "",
        short_outputs=sum(answer.is_short for answer in whole),
        duration_s=duration_s,
        prompt_tokens=sum(answer.prompt_tokens for answer in whole),
        cached_tokens=sum(answer.cached_tokens for answer in whole),
        output_tokens=output_tokens,
        output_tokens_per_s=output_tokens / duration_s if duration_s else 0.0,
        ttft_ms=spread([answer.text_times[0] - answer.begin for answer in whole]),
        itl_ms=spread([gap for answer in whole for gap in _gaps(answer)]),
        tpot_ms=spread([_per_token(answer) for answer in whole if answer.output_tokens > 1]),
        e2e_ms=spread([answer.end - answer.begin for answer in whole]),
        load=load,
    )


def duration(answers: Sequence[Answer]) -> float:
    """Returns the seconds from the first begin to the last end; 0 without answers."""
    if not answers:
        return 0.0
    return max(answer.end for answer in answers) - min(answer.begin for answer in answers)


def spread(times_s: Sequence[float]) -> Spread:
    """Returns mean and percentiles of times in seconds, as milliseconds."""
    if not times_s:
        return Spread()
    ordered = sorted(time_s * 1000 for time_s in times_s)
    return Spread(
        mean=statistics.fmean(ordered),
        p50=percentile(ordered, 50),
        p90=percentile(ordered, 90),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns a percentile of sorted numbers, between two of them by straight line."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _gaps(answer: Answer) -> list[float]:
    return [late - early for early, late in itertools.pairwise(answer.text_times)]


def _per_token(answer: Answer) -> float:
    return (answer.text_times[-1] - answer.text_times[0]) / (answer.output_tokens - 1)
