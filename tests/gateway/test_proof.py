import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from octavo.gateway import proof as module
from octavo.gateway.attempts import Attempt, EngineLostError
from octavo.gateway.proof import Proof, outcome_of, probe_request
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import DRAINING, INTERNAL, QUEUE_FULL, OctavoError
from octavo.v1.features import FEATURE_PRIORITY, FEATURE_RESUME
from octavo.v1.limits import MAX_PRIORITY
from octavo.v1.validation import Capacity, validate_request

FULL = OctavoError(QUEUE_FULL, queued=9, limit=9, unit="requests")
TOKEN = engine_pb2.Delta(token_ids=[7], finish_reason=common_pb2.FINISH_REASON_LENGTH)
CARD = engine_pb2.ModelCard(
    model="m",
    block_tokens=16,
    num_blocks=8,
    max_model_len=32,
    vocab_size=9,
    max_num_seqs=1,
    features=FEATURE_PRIORITY,
)


def attempt() -> Attempt:
    return Attempt(probe_request(CARD, id="p"), hashes=[], prefill_tokens=1)


class Desk:
    """A proof and the attempts that it makes."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.cancelled: list[Attempt] = []
        self.num_done = 0
        self.proof = Proof("e", submit=self._submit, cancel=self._cancel, on_done=self._note_done)

    def _submit(self) -> Attempt:
        self.attempts.append(attempt())
        return self.attempts[-1]

    def _cancel(self, one: Attempt) -> None:
        self.cancelled.append(one)
        one.end()

    def _note_done(self) -> None:
        self.num_done += 1

    async def answer(self, error: Exception | None = None) -> None:
        """Ends the present attempt, with a token unless there is an error."""
        if error is None:
            self.attempts[-1].put(TOKEN)
        self.attempts[-1].end(error)
        await asyncio.sleep(0.01)


def run(scenario: Callable[[Desk], Coroutine[Any, Any, None]]) -> None:
    async def running() -> None:
        desk = Desk()
        task = asyncio.create_task(desk.proof.run())
        await asyncio.sleep(0.01)
        assert desk.attempts == []
        await scenario(desk)
        task.cancel()

    asyncio.run(running())


def test_the_request_is_sound_and_comes_first() -> None:
    request = probe_request(CARD, id="p")
    validate_request(request, Capacity.of(CARD))
    assert (request.max_tokens, request.priority) == (1, -MAX_PRIORITY)


def test_36_an_engine_that_knows_no_priority_is_asked_without() -> None:
    card = engine_pb2.ModelCard()
    card.CopyFrom(CARD)
    card.features = FEATURE_RESUME
    assert probe_request(card, id="p").priority == 0


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (None, ""),
        (FULL, ""),
        (OctavoError(DRAINING), "shutting down"),
        (OctavoError(INTERNAL, id="p"), "unexpected error"),
        (EngineLostError("the cable was cut"), "the cable was cut"),
    ],
    ids=["token", "busy", "draining", "broken", "lost"],
)
def test_a_token_proves_it_and_so_does_having_too_much_to_do(
    error: Exception | None, problem: str
) -> None:
    async def scenario() -> None:
        one = attempt()
        if error is None:
            one.put(TOKEN)
        one.end(error)
        outcome = await outcome_of(one)
        assert (outcome == "") == (problem == "")
        assert problem in outcome

    asyncio.run(scenario())


def test_an_end_without_a_token_proves_nothing() -> None:
    async def scenario() -> None:
        one = attempt()
        one.put(engine_pb2.Delta(finish_reason=common_pb2.FINISH_REASON_ABORT))
        one.end()
        assert await outcome_of(one) == "no token"

    asyncio.run(scenario())


def test_silence_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.05)

    async def scenario() -> None:
        assert "no token within" in await outcome_of(attempt())

    asyncio.run(scenario())


def test_it_is_tried_once_it_is_possible_and_only_once_in_a_life() -> None:
    async def scenario(desk: Desk) -> None:
        desk.proof.allow()
        await asyncio.sleep(0.01)
        assert not desk.proof.done
        await desk.answer()
        assert desk.proof.done
        assert desk.num_done == 1
        desk.proof.allow()
        await asyncio.sleep(0.01)
        assert len(desk.attempts) == 1
        desk.proof.renew()
        assert not desk.proof.done
        desk.proof.allow()
        await asyncio.sleep(0.01)
        await desk.answer()
        assert (len(desk.attempts), desk.num_done) == (2, 2)
        assert desk.cancelled == desk.attempts

    run(scenario)


def test_a_failed_try_is_told_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.05)

    async def scenario(desk: Desk) -> None:
        desk.proof.allow()
        await asyncio.sleep(0.01)
        await desk.answer(OctavoError(INTERNAL, id="p"))
        assert "unexpected error" in desk.proof.problem
        assert not desk.proof.done
        await asyncio.sleep(0.1)
        await desk.answer()
        assert desk.proof.done
        assert desk.proof.problem == ""

    run(scenario)


def test_what_was_given_up_proves_nothing() -> None:
    async def scenario(desk: Desk) -> None:
        desk.proof.allow()
        await asyncio.sleep(0.01)
        desk.attempts[-1].put(TOKEN)  # it has arrived, but nobody has looked yet
        desk.proof.renew()
        await asyncio.sleep(0.01)
        assert not desk.proof.done
        assert len(desk.attempts) == 1
        desk.proof.allow()
        await asyncio.sleep(0.01)
        await desk.answer()
        assert desk.proof.done

    run(scenario)
