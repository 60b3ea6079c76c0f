import asyncio

import pytest
from tests.bounds import EVENTUALLY_S

from octavo.gateway import probation as module
from octavo.gateway.probation import LONGEST_S, QUARANTINE_S, Probation, Quarantine, fingerprint
from octavo.v1 import engine_pb2


def test_one_suspect_at_a_time_on_each_engine() -> None:
    probation = Probation()
    assert probation.admits("a", 0.0)
    probation.enter("a", "r1", 0.0)
    assert not probation.admits("a", 0.5)
    assert probation.admits("b", 0.5)
    assert not probation.leave("a", "another")
    assert not probation.admits("a", 0.5)
    assert probation.leave("a", "r1")
    assert probation.admits("a", 0.5)
    assert not probation.leave("a", "r1"), "it has passed already"


def test_a_long_probation_lets_others_in_and_then_proves_nothing() -> None:
    probation = Probation()
    probation.enter("a", "r1", 0.0)
    assert probation.admits("a", LONGEST_S)
    probation.enter("a", "r2", LONGEST_S)
    assert not probation.admits("a", LONGEST_S + 0.1)
    assert not probation.leave("a", "r1"), "two were there, so it may have been either"
    assert not probation.leave("a", "r2"), "also for the one that is left"
    probation.enter("a", "r3", 2 * LONGEST_S)
    assert probation.leave("a", "r3")


def test_who_waits_is_woken_when_somebody_leaves() -> None:
    async def scenario() -> None:
        probation = Probation()
        probation.enter("a", "r1", 0.0)
        waiting = asyncio.create_task(probation.changed(60.0))
        await asyncio.sleep(0)
        probation.leave("a", "r1")
        async with asyncio.timeout(EVENTUALLY_S):
            await waiting
        await probation.changed(0.001)  # nobody leaves: it returns all the same
        two = [asyncio.create_task(probation.changed(0.05)) for _ in range(2)]
        await asyncio.sleep(0)
        probation.enter("a", "r2", 0.0)
        probation.leave("a", "r2")
        done, _ = await asyncio.wait(two, return_when="FIRST_COMPLETED")
        assert done == {two[0]}, "there is one place"
        await asyncio.wait(two)

    asyncio.run(scenario())


def request(prompt: list[int], **fields: object) -> engine_pb2.GenerateRequest:
    ids = engine_pb2.TokenIds(ids=prompt)
    return engine_pb2.GenerateRequest(token_ids=ids, **fields)  # type: ignore[arg-type]


def test_a_request_is_known_again_by_what_it_asks_for() -> None:
    first = request([1, 2], request_id="a", attempt=3, age_ms=5, deaths=1)
    first.sampling.seed = 7
    again = request([1, 2], request_id="b", remaining_ms=9, priority=3, max_queue_ms=7)
    again.sampling.seed = 8
    assert fingerprint(first) == fingerprint(again)
    assert fingerprint(first) != fingerprint(request([1, 3]))
    assert fingerprint(first) != fingerprint(request([1, 2], max_tokens=5))
    assert first.request_id == "a", "it is not changed"


def test_quarantine_ends_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUARANTINED", 2)
    quarantine = Quarantine()
    assert not quarantine.holds(request([1]), 0.0)
    for token in (1, 2, 3):
        quarantine.put(request([token]), 0.0)
    assert [quarantine.holds(request([t]), 1.0) for t in (1, 2, 3)] == [False, True, True]
    assert not quarantine.holds(request([3]), QUARANTINE_S)
