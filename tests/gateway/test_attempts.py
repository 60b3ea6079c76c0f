import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.gateway.attempts import MAX_MESSAGE_BYTES, Attempt, AttemptTable, EngineLostError
from octavo.gateway.prefix_index import PrefixIndex
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import QUEUE_FULL, OctavoError


@dataclass
class Bench:
    index: PrefixIndex = field(default_factory=PrefixIndex)
    drops: list[str] = field(default_factory=list)
    notices: int = 0

    def __post_init__(self) -> None:
        self.table = AttemptTable(self.index, on_outgoing=self.notice, on_drop=self.drops.append)

    def notice(self) -> None:
        self.notices += 1

    def open(self, id: str = "r", attempt: int = 0, n: int = 1, tokens: int = 10) -> Attempt:
        request = engine_pb2.GenerateRequest(request_id=id, attempt=attempt, n=n)
        hashes = [BlockHash(f"{id}-{i}".encode()) for i in range(3)]
        new = Attempt(request, hashes=hashes, prefill_tokens=tokens)
        self.table.open(request, new)
        return new

    def accept(self, attempt: Attempt) -> None:
        ref = ref_of(attempt)
        self.table.apply(engine_pb2.SessionUpdate(accepted=[engine_pb2.Accepted(attempt_ref=ref)]))

    def deliver(self, *deltas: engine_pb2.Delta) -> None:
        self.table.apply(engine_pb2.SessionUpdate(deltas=deltas))


def ref_of(attempt: Attempt) -> engine_pb2.AttemptRef:
    return engine_pb2.AttemptRef(request_id=attempt.key[0], attempt=attempt.key[1])


def delta(
    attempt: Attempt, position: int, *, choice: int = 0, tokens: int = 1, last: bool = False
) -> engine_pb2.Delta:
    return engine_pb2.Delta(
        request_id=attempt.key[0],
        attempt=attempt.key[1],
        choice=choice,
        position=position,
        token_ids=range(position, position + tokens),
        finish_reason=common_pb2.FINISH_REASON_STOP if last else 0,  # type: ignore[arg-type]
    )


def test_an_attempt_counts_from_the_moment_it_is_chosen() -> None:
    bench = Bench()
    bench.open(n=3, tokens=70)
    assert (bench.table.in_flight, bench.table.choices) == (1, 3)
    assert bench.table.unreported_tokens == 70
    assert bench.index.num_promised() == 3
    assert bench.notices == 1


def test_a_load_report_covers_what_was_accepted_before_it() -> None:
    bench = Bench()
    first = bench.open("a", tokens=70)
    bench.open("b", tokens=5)
    assert (bench.table.num_unreported, bench.table.unreported_tokens) == (2, 75)
    bench.accept(first)
    bench.table.load_reported()
    assert (bench.table.num_unreported, bench.table.unreported_tokens) == (1, 5)


def test_the_first_delta_ends_the_prefill() -> None:
    bench = Bench()
    attempt = bench.open(tokens=70)
    bench.deliver(delta(attempt, 0))
    assert bench.table.unreported_tokens == 0
    assert bench.table.in_flight == 1


@pytest.mark.parametrize(
    ("late", "reason"),
    [
        (lambda a: delta(a, 0), "position"),
        (lambda a: delta(a, 2, choice=1), "finished"),
        (lambda a: delta(a, 0, choice=9), "choice"),
        (
            lambda a: engine_pb2.Delta(request_id=a.key[0], attempt=7, position=2, token_ids=[1]),
            "attempt",
        ),
    ],
    ids=["repeated", "after its end", "unknown choice", "other attempt"],
)
def test_what_does_not_fit_is_dropped_and_counted(late: object, reason: str) -> None:
    bench = Bench()
    attempt = bench.open(n=2)
    bench.deliver(delta(attempt, 0, tokens=2), delta(attempt, 0, choice=1, tokens=2, last=True))
    bench.deliver(late(attempt))  # type: ignore[operator]
    assert bench.drops == [reason]
    assert bench.table.in_flight == 1


def test_everything_that_came_is_read_before_the_loss_shows() -> None:
    async def scenario() -> None:
        bench = Bench()
        attempt = bench.open()
        bench.deliver(delta(attempt, 0))
        bench.table.lose_all("gone")
        first = await attempt.next()
        assert first is not None
        with pytest.raises(EngineLostError):
            await attempt.next()

    asyncio.run(scenario())


def test_a_waiting_reader_wakes_at_the_loss() -> None:
    async def scenario() -> None:
        bench = Bench()
        attempt = bench.open()
        reading = asyncio.ensure_future(attempt.next())
        await asyncio.sleep(0)
        bench.table.lose_all("gone")
        with pytest.raises(EngineLostError):
            await reading

    asyncio.run(scenario())


def test_a_refusal_is_raised_to_who_waits_for_the_answer() -> None:
    async def scenario() -> None:
        bench = Bench()
        attempt = bench.open()
        error = OctavoError(QUEUE_FULL, queued=1, limit=1, unit="requests", retry_after_ms=9)
        refused = engine_pb2.Refused(attempt_ref=ref_of(attempt), error=error.to_proto())
        bench.table.apply(engine_pb2.SessionUpdate(refused=[refused]))
        with pytest.raises(OctavoError) as caught:
            await attempt.answered()
        assert caught.value.retry_after_ms == 9

    asyncio.run(scenario())


def test_a_request_cancelled_before_it_was_sent_is_never_sent() -> None:
    bench = Bench()
    bench.table.cancel(bench.open())
    assert bench.table.take_outgoing() is None


def test_a_request_cancelled_after_it_was_sent_is_cancelled_once() -> None:
    bench = Bench()
    attempt = bench.open()
    assert bench.table.take_outgoing() is not None
    bench.table.cancel(attempt)
    bench.table.cancel(attempt)
    message = bench.table.take_outgoing()
    assert message is not None
    assert [(c.request_id, c.attempt) for c in message.cancel] == [attempt.key]


def test_large_requests_are_split_over_messages() -> None:
    bench = Bench()
    for i in range(3):
        request = engine_pb2.GenerateRequest(
            request_id=str(i), token_ids=engine_pb2.TokenIds(ids=[100] * (MAX_MESSAGE_BYTES // 2))
        )
        bench.table.open(request, Attempt(request, hashes=[], prefill_tokens=1))
    sizes = []
    while message := bench.table.take_outgoing():
        sizes.append(len(message.generate))
        assert message.ByteSize() < 4 * 1024 * 1024
    assert sizes == [1, 1, 1]


OPERATIONS = (
    *("open", "accept", "refuse", "delta", "finish", "error"),
    *("cancel", "send", "load", "gap", "repeat", "lose"),
)


_STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1000)), max_size=60)


@settings(max_examples=300)
@given(steps=_STEPS)
def test_counters_are_the_open_attempts_whatever_happens(steps: list[tuple[str, int]]) -> None:
    bench, made, lengths = Bench(), list[Attempt](), dict[Attempt, int]()
    for kind, number in steps:
        if kind == "open" or not made:
            made.append(bench.open(str(len(made)), tokens=number))
            lengths[made[-1]] = 0
        attempt = made[number % len(made)]
        length = lengths[attempt]
        if kind == "accept":
            bench.accept(attempt)
        elif kind == "refuse":
            bench.table.apply(
                engine_pb2.SessionUpdate(refused=[engine_pb2.Refused(attempt_ref=ref_of(attempt))])
            )
        elif kind in ("delta", "finish", "gap", "repeat", "error"):
            shift = {"gap": 1, "repeat": -1}.get(kind, 0)
            piece = delta(attempt, max(0, length + shift), last=kind == "finish")
            if kind == "error":
                piece.finish_reason = common_pb2.FINISH_REASON_ERROR
            before = attempt.ended
            bench.deliver(piece)
            if not before and piece.position == length:
                lengths[attempt] += 1
        elif kind == "cancel":
            bench.table.cancel(attempt)
        elif kind == "send":
            bench.table.take_outgoing()
        elif kind == "load":
            bench.table.load_reported()
        elif kind == "lose":
            bench.table.lose_all("gone")
        bench.table.check_integrity()
        assert bench.table.in_flight == sum(not a.ended for a in made)
    bench.table.lose_all("the end")
    bench.table.check_integrity()
    assert bench.table.in_flight == bench.table.unreported_tokens == bench.index.num_promised() == 0
