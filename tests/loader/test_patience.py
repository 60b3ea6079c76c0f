"""Retries pause longer and longer, and end at their bound; all in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.sim.loop import run

from octavo.loader.patience import Patience
from octavo.loader.source import TransientError
from octavo.v1.errors import SOURCE_UNREACHABLE, OctavoError


def made(give_up_s: float, seed: int = 1) -> Patience:
    clock, spread = asyncio.get_running_loop().time, random.Random(seed).uniform
    return Patience("hub", "hf://a/b", give_up_s, clock=clock, spread=spread)


async def until_the_end(patience: Patience, error: TransientError) -> tuple[list[float], str]:
    """Fails again and again; returns the pauses and the last word."""
    loop = asyncio.get_running_loop()
    pauses: list[float] = []

    async def fail_again() -> None:
        while True:
            before = loop.time()
            await patience.pause(error)
            pauses.append(loop.time() - before)

    with pytest.raises(OctavoError) as refused:
        await fail_again()
    assert refused.value.kind is SOURCE_UNREACHABLE
    return pauses, refused.value.message


def simulate(give_up_s: float, error: TransientError, seed: int = 1) -> tuple[list[float], str]:
    async def main() -> tuple[list[float], str]:
        return await until_the_end(made(give_up_s, seed), error)

    return run(main, rng=random.Random(seed))


def test_pauses_grow_and_differ_and_end_at_the_bound() -> None:
    pauses, said = simulate(300, TransientError("host answers 503"))
    assert sum(pauses) == pytest.approx(300)
    assert all(pause <= 30 for pause in pauses)
    assert pauses[0] <= 0.5 < pauses[3]
    assert 12 <= len(pauses) <= 40
    assert said == "hub does not give hf://a/b: nothing came for 300 s: host answers 503"
    assert pauses != simulate(300, TransientError("host answers 503"), seed=2)[0]


def test_a_source_is_left_alone_as_long_as_it_asks() -> None:
    pauses, _ = simulate(300, TransientError("busy", retry_after_s=120))
    assert pauses == [120, 120]


def test_who_asks_for_longer_than_there_is_ends_it_at_once() -> None:
    pauses, said = simulate(300, TransientError("busy", retry_after_s=3600))
    assert pauses == []
    assert "busy, asks to wait 3600 s" in said


def test_bytes_begin_the_time_anew() -> None:
    async def main() -> float:
        patience = made(10)
        for _ in range(50):
            await patience.pause(TransientError("cut"))
            await asyncio.sleep(5)
            patience.progressed()
        pauses, _ = await until_the_end(patience, TransientError("cut"))
        return sum(pauses)

    assert run(main, rng=random.Random(1)) == pytest.approx(10)


def test_no_patience_is_one_try() -> None:
    assert simulate(0, TransientError("cut"))[0] == []
