"""How the tests of generations ask, and what fake engines do with it."""

from __future__ import annotations

from collections.abc import Callable

from tests.gateway.byte_model import token_at
from tests.gateway.harness import prompt
from tests.gateway.script import Script

from octavo.gateway.dispatch import Generation
from octavo.v1 import engine_pb2
from octavo.v1.errors import QUEUE_FULL, OctavoError

FULL = OctavoError(QUEUE_FULL, queued=9, limit=9, unit="requests", retry_after_ms=30_000)


def always(script: Script) -> Callable[[engine_pb2.GenerateRequest], Script]:
    return lambda _: script


def by_attempt(*scripts: Script) -> Callable[[engine_pb2.GenerateRequest], Script]:
    return lambda request: scripts[min(request.attempt, len(scripts) - 1)]


def expected(text: str, seed: int, count: int, choice: int = 0) -> str:
    return "".join(chr(token_at(text.encode(), seed, choice, p)) for p in range(count))


async def read_into(generation: Generation, parts: list[str]) -> None:
    while delta := await anext(generation, None):
        parts.append(delta.text)


def seeded(text: str, seed: int = 5, **fields: object) -> engine_pb2.GenerateRequest:
    return prompt(text, sampling=engine_pb2.Sampling(seed=seed), **fields)
