from __future__ import annotations

from bench.report import METRICS, line, table
from bench.result import Load, Result, Spread


def result(target: str, run: int, *, rate: float, ttft: float, errors: int = 0) -> Result:
    times = Spread(mean=ttft, p50=ttft, p90=ttft, p99=ttft, max=ttft)
    return Result(
        target=target,
        workload="W1",
        run=run,
        requests=4,
        errors=errors,
        first_error="lost" if errors else "",
        short_outputs=0,
        duration_s=1.0,
        prompt_tokens=4,
        cached_tokens=0,
        output_tokens=4,
        output_tokens_per_s=rate,
        ttft_ms=times,
        itl_ms=times,
        tpot_ms=Spread(),
        e2e_ms=times,
        load=Load(client_cpu_s=0.1),
    )


RESULTS = [
    result("ours", 1, rate=100, ttft=50),
    result("peer", 1, rate=50, ttft=100),
    result("peer", 2, rate=100, ttft=40),
    result("ours", 2, rate=150, ttft=80),
    result("ours", 3, rate=120, ttft=60),
    result("peer", 3, rate=60, ttft=60),
]


def row(label: str, text: str) -> list[str]:
    [found] = [one for one in text.splitlines() if one.startswith(f"| {label} ")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_medians_stand_beside_their_range() -> None:
    assert row("output tok/s", table(RESULTS))[1:3] == [
        "120.0 (100.0-150.0)",
        "60.0 (50.0-100.0)",
    ]


def test_ratios_are_of_runs_with_the_same_number_and_above_one_for_the_better() -> None:
    text = table(RESULTS)
    assert row("output tok/s", text)[3] == "2.00 (1.50-2.00)"
    assert row("TTFT p50 ms", text)[3] == "1.00 (0.50-2.00)"


def test_first_server_met_is_the_one_compared() -> None:
    head = table(RESULTS).splitlines()[0]
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "W1",
        "ours",
        "peer",
        "ours: better than peer by",
    ]


def test_metric_that_nobody_has_is_left_out() -> None:
    text = table(RESULTS)
    assert "TPOT" not in text
    assert "peak RSS" not in text


def test_one_server_has_no_ratios() -> None:
    ours = [one for one in RESULTS if one.target == "ours"]
    assert all(len(row(m.label, table(ours))) == 2 for m in METRICS if m.label in table(ours))


def test_all_lines_are_equally_wide() -> None:
    assert len({len(one) for one in table(RESULTS).splitlines()}) == 1


def test_line_names_failures() -> None:
    assert "2 of 4 failed: lost" in line(result("ours", 1, rate=1, ttft=1, errors=2))
