from __future__ import annotations

import pytest

from octavo.operator.health import POLL_S, SUCCESS_S, WORK_S, Health, judge


def judged(
    *,
    resync: float = 0,
    gateways: float = 0,
    work: float = 10_000,
    overdue_s: float = 0,
    synced: float | None = 0,
) -> Health:
    """Judges loops of the given ages."""
    now = 10_000.0
    return judge(
        beats={"resync": now - resync, "gateways": now - gateways, "work": now - work},
        synced_at=None if synced is None else now - synced,
        overdue_s=overdue_s,
        resync_s=40,
        now=now,
    )


def test_loops_that_come_round_are_well() -> None:
    health = judged(resync=60, gateways=2, overdue_s=3, synced=60)
    assert health.alive
    assert health.ready
    assert health.ages == {"resync": 60, "gateways": 2, "work": 3, "listing": 60}


@pytest.mark.parametrize(
    ("name", "ages"),
    [
        ("resync", {"resync": 3 * 40 + POLL_S + 1}),
        ("gateways", {"gateways": POLL_S + 1}),
        ("work", {"overdue_s": WORK_S + 1}),
        ("listing", {"synced": SUCCESS_S + 1}),
    ],
)
def test_a_loop_that_does_not_is_named(name: str, ages: dict[str, float]) -> None:
    health = judged(**ages)
    assert health.stuck == (name,)
    assert not health.alive


def test_a_long_queue_that_moves_is_well() -> None:
    assert judged(overdue_s=WORK_S * 3, work=2).alive
    assert judged(overdue_s=0, work=WORK_S * 3).alive, "nobody waits"


def test_an_api_server_that_is_away_for_minutes_is_no_illness() -> None:
    assert judged(resync=20, synced=600).alive


def test_before_the_first_listing_it_is_alive_and_not_ready() -> None:
    health = judged(synced=None)
    assert health.alive
    assert not health.ready


@pytest.mark.parametrize(("ready", "stuck"), [(True, ()), (False, ()), (True, ("work",))])
def test_probes_are_told_which_loops_are_stuck_and_how_old_they_are(
    ready: bool, stuck: tuple[str, ...]
) -> None:
    health = Health(ready=ready, ages={"work": 1.25}, stuck=stuck)
    assert health.shown() == {"ready": ready, "stuck": stuck, "ages_s": {"work": 1.2}}
