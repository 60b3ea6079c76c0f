from __future__ import annotations

import asyncio

import pytest

from octavo.engine import health as module
from octavo.engine.health import Health, stale_after_s, watch


def made(stage: str = "ready", age_s: float = 0.0, stale_s: float = 1.0) -> Health:
    return Health(stage=stage, step=7, step_age_s=age_s, stale_s=stale_s)


@pytest.mark.parametrize(
    ("stage", "age_s", "alive", "ready"),
    [
        ("loading", 0.0, True, False),
        ("warming", 0.0, True, False),
        ("ready", 0.0, True, True),
        ("ready", 0.99, True, True),
        ("ready", 1.0, False, False),
        ("draining", 0.5, True, False),
        ("draining", 1.0, False, False),
        ("failed", 0.0, False, False),
    ],
)
def test_progress_is_what_makes_it_well(stage: str, age_s: float, alive: bool, ready: bool) -> None:
    health = made(stage, age_s)
    assert (health.alive, health.ready) == (alive, ready)


@pytest.mark.parametrize(("watchdog_s", "stale_s"), [(60.0, 30.0), (4.0, 2.0), (0.0, 30.0)])
def test_probes_see_a_stuck_turn_before_the_watchdog_acts(
    watchdog_s: float, stale_s: float
) -> None:
    assert stale_after_s(watchdog_s) == stale_s


def test_the_watch_tells_each_change_once_and_ends_with_a_turn_that_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = [made("loading"), made(), made(), made(age_s=1.5), made(age_s=1.9), made(), made()]
    states += [made(age_s=1.5), made(age_s=2.1), made()]
    told: list[bool] = []

    async def tell(serving: bool) -> None:
        told.append(serving)

    monkeypatch.setattr(module, "TICK_S", 0.0)
    asyncio.run(watch(lambda: states.pop(0), limit_s=2.0, tell=tell))
    assert told == [True, False, True, False]
    assert len(states) == 1


def test_without_a_watchdog_nothing_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(serving: bool) -> None:
        raise AssertionError

    async def check() -> None:
        running = asyncio.create_task(watch(lambda: made(age_s=9.0), limit_s=0.0, tell=tell))
        await asyncio.sleep(0.05)
        assert not running.done()
        running.cancel()

    monkeypatch.setattr(module, "TICK_S", 0.0)
    asyncio.run(check())


@pytest.mark.parametrize(
    "health", [made(), made("loading"), made(age_s=0.5), made(age_s=2.0), made("failed")]
)
def test_probes_are_told_the_stage_the_step_and_its_age(health: Health) -> None:
    assert health.shown() == {"stage": health.stage, "step": 7, "step_age_s": health.step_age_s}
