"""Clients that ask all the while, and know what an undisturbed platform answers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from tests.e2e.release import MODEL, Platform
from tests.faults.stream_client import Answer, ask

OPEN_S = 60.0


def bodies(count: int, tokens: int = 12) -> list[dict[str, Any]]:
    """Returns requests for streams of so many tokens, greedy and sampled ones."""
    return [
        {
            "model": MODEL,
            "prompt": f"Story {number}. Once upon a time there was a",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}),
        }
        for number in range(count)
    ]


def prefixed(topic: str, count: int) -> list[dict[str, Any]]:
    """Returns requests for a token, each with a long prefix that no other one has."""
    return [
        {
            "model": MODEL,
            "prompt": f"{topic} {number}: the binder sews the gatherings in order. " * 24,
            "max_tokens": 1,
            "temperature": 0,
        }
        for number in range(count)
    ]


def spread(
    platform: Platform, topic: str, engines: set[str]
) -> list[tuple[dict[str, Any], Answer]]:
    """Asks with new prefixes, many at once, until each engine has served some; returns all."""
    found: list[tuple[dict[str, Any], Answer]] = []
    for batch in range(5):
        asked = prefixed(f"{topic} {batch}", 4 * len(engines))
        found += zip(asked, platform.ask_all(asked), strict=True)
        if {answer.route[0] for _, answer in found} == engines:
            return found
    raise AssertionError([answer.headers["X-Octavo-Route"] for _, answer in found])


class Questions:
    """Questions, and what an undisturbed platform answers.

    Args:
        platform: who is asked; undisturbed now.
        count: how many there are.
        tokens: of each answer.
    """

    def __init__(self, platform: Platform, count: int = 20, tokens: int = 12) -> None:
        self._platform = platform
        self.asked = bodies(count, tokens)
        answers = platform.ask_all(self.asked)
        assert all(answer.ok for answer in answers), [(a.status, a.error) for a in answers]
        self.expected = [answer.content for answer in answers]

    def during(
        self, change: Callable[[], object], clients: int = 6, *, at: Platform | None = None
    ) -> list[Answer]:
        """Changes something while all clients have a stream open; returns the answers.

        Every one of them has to be right, from the first token to [DONE]. Each client asks once
        more when the change is done.

        Args:
            change: is done meanwhile.
            clients: how many there are.
            at: who is asked, when it is somebody else with the same engines.
        """
        with _Load(at or self._platform, self.asked, clients) as load:
            load.until_open()
            change()
        wrong = [
            f"{which}: {answer.status} {answer.error or answer.broken or 'another answer'}"
            for which, answer in load.answers
            if not answer.ok or answer.content != self.expected[which]
        ]
        assert not wrong, wrong
        assert len(load.answers) >= 2 * clients
        return [answer for _, answer in load.answers]


class _Load:
    """Requests of some clients, one after the other, until told to stop."""

    def __init__(self, platform: Platform, asked: Sequence[dict[str, Any]], clients: int) -> None:
        self._platform = platform
        self._asked = asked
        self._clients = clients
        self._stop = threading.Event()
        self._begun = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main)
        self.answers: list[tuple[int, Answer]] = []

    def __enter__(self) -> _Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def until_open(self) -> None:
        """Waits until as many streams as there are clients have begun."""
        for _ in range(self._clients):
            assert self._begun.acquire(timeout=OPEN_S), "no stream begins"

    def _main(self) -> None:
        url = self._platform.url
        self._platform.run(
            lambda session: asyncio.gather(
                *(self._client(session, url, number) for number in range(self._clients))
            )
        )

    async def _client(self, session: aiohttp.ClientSession, url: str, number: int) -> None:
        """Asks and reads, each as long as the answer took, so that the node can do other work."""
        is_last = False
        while not is_last:
            is_last = self._stop.is_set()
            which = number % len(self._asked)
            began = time.monotonic()
            answer = await ask(
                session, url, self._asked[which], on_first=lambda _: self._begun.release()
            )
            self.answers.append((which, answer))
            number += self._clients
            ended = time.monotonic()
            while not self._stop.is_set() and time.monotonic() < 2 * ended - began:
                await asyncio.sleep(0.1)
