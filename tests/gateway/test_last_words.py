from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine

import pytest

from octavo.gateway import last_words
from octavo.gateway.last_words import see_out

Answer = Callable[[asyncio.Event], Coroutine[None, None, object]]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.05)


def seen_out(answer: Answer, *, after_s: float) -> tuple[bool, bool]:
    """Whether the answer ended by itself, and whether it was told to."""

    async def go() -> tuple[bool, bool]:
        told = asyncio.Event()
        return await see_out(answer(told), told.set, after_s=after_s), told.is_set()

    return asyncio.run(go())


async def says_so(told: asyncio.Event) -> None:
    await told.wait()
    await asyncio.sleep(0.01)


def test_nobody_is_told_when_all_end_in_time() -> None:
    assert seen_out(lambda _: asyncio.sleep(0), after_s=1.0) == (True, False)


def test_who_outlasts_the_drain_is_told_and_may_still_say_so() -> None:
    assert seen_out(says_so, after_s=0.0) == (True, True)


def test_who_does_not_take_it_is_cut_off() -> None:
    assert seen_out(lambda _: asyncio.Event().wait(), after_s=0.0) == (False, True)


def test_last_words_are_heard_after_a_standstill_longer_than_both_times() -> None:
    async def answer(told: asyncio.Event) -> None:
        time.sleep(0.2)  # noqa: ASYNC251 - as SIGSTOP: the loop stands still, the clock does not
        await says_so(told)

    assert seen_out(answer, after_s=0.02) == (True, True)


def test_what_goes_wrong_meanwhile_is_raised() -> None:
    async def answer(_: asyncio.Event) -> None:
        raise EOFError

    with pytest.raises(EOFError):
        seen_out(answer, after_s=1.0)
