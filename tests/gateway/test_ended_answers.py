from __future__ import annotations

import asyncio

import pytest
from tests.gateway.harness import until
from tests.gateway.test_idempotency import entry

from octavo.gateway import ended_answers
from octavo.gateway.ended_answers import EndedAnswers
from octavo.gateway.idempotency import key_digest
from octavo.gateway.kept_answer import KeptAnswer


def ended(key: str, size: int = 100) -> KeptAnswer:
    made = entry(key=key_digest("", key))
    answer = KeptAnswer(made, on_empty=lambda _: None, on_read=lambda _: None)
    answer.load([[bytes(size)]])
    answer.end("finished")
    return answer


def held(answers: EndedAnswers, names: str) -> str:
    answers.check_integrity()
    return "".join(n for n in names if answers.get(key_digest("", n)) is not None)


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_answers, "MAX_ANSWERS", 3)
    monkeypatch.setattr(ended_answers, "MAX_BYTES", 2000)

    async def scenario() -> None:
        answers = EndedAnswers(ttl_s=60)
        for name in "abcd":
            answers.add(ended(name))
        assert held(answers, "abcd") == "bcd"
        answers.add(ended("e", size=1700))
        assert held(answers, "abcde") == "de"
        answers.add(ended("f", size=5000))  # more than all may have
        assert held(answers, "abcdef") == ""
        answers.clear()

    asyncio.run(scenario())


def test_each_has_its_time() -> None:
    async def scenario() -> None:
        answers = EndedAnswers(ttl_s=0.1)
        answers.add(ended("a"))
        await asyncio.sleep(0.06)
        answers.add(ended("b"))
        await until(lambda: len(answers) == 1)
        assert held(answers, "ab") == "b"
        await until(lambda: len(answers) == 0)
        answers.check_integrity()

    asyncio.run(scenario())


def test_a_key_can_be_used_again_after_its_answer_was_removed() -> None:
    async def scenario() -> None:
        answers = EndedAnswers(ttl_s=0.1)
        answers.add(ended("a"))
        answers.remove(key_digest("", "a"))
        assert held(answers, "a") == ""
        again = ended("a")
        answers.add(again)
        await asyncio.sleep(0.05)
        assert answers.get(key_digest("", "a")) is again
        answers.clear()

    asyncio.run(scenario())
