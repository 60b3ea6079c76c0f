"""Service is shared among fairness keys."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.scheduling import Driver, expected, make_request, prompt_of

from octavo.engine import fair_queue as module
from octavo.engine.batch import Row, SampleSpec
from octavo.engine.fair_queue import INPUT_WEIGHT, OUTPUT_WEIGHT, FairQueue
from octavo.engine.request import Request, RequestId


def row_of(request: Request, start: int, length: int, *, outputs: int = 0) -> Row:
    spec = SampleSpec(request=request)
    ids = tuple(range(length))
    return Row(
        request=request, start=start, token_ids=ids, block_table=(), samples=(spec,) * outputs
    )


def test_who_was_served_least_is_next_then_who_came_first() -> None:
    queue = FairQueue()
    a, b, c = (make_request(i, prompt_of(9), fairness_key=k) for i, k in enumerate("abc"))
    for request in (c, b, a):
        queue.add(request)
    assert (queue.head, len(queue), list(queue)) == (a, 3, [a, b, c])
    queue.charge(row_of(a, 0, 4))
    assert queue.head is b
    queue.charge(row_of(b, 0, 3))
    queue.charge(row_of(c, 0, 1, outputs=1))
    assert queue.head is b, "an output weighs more"
    queue.remove(b)
    assert b not in queue
    assert queue.head is c


def test_importance_comes_before_shares() -> None:
    queue = FairQueue()
    greedy = make_request(1, [1], fairness_key="a", priority=-1)
    modest = make_request(2, [1], fairness_key="b")
    queue.add(greedy)
    queue.add(modest)
    queue.charge(row_of(greedy, 0, 100, outputs=9))
    assert queue.head is greedy


def test_requests_without_a_key_share_one() -> None:
    queue = FairQueue()
    unnamed = [make_request(i, prompt_of(9)) for i in (1, 2)]
    named = make_request(3, prompt_of(9), fairness_key="a")
    for request in (*unnamed, named):
        queue.add(request)
    queue.charge(row_of(unnamed[0], 0, 9))
    queue.remove(unnamed[0])
    assert queue.head is named


def test_a_key_that_comes_back_has_saved_up_nothing() -> None:
    queue = FairQueue()
    a, b = (make_request(i, prompt_of(50), fairness_key=k) for i, k in enumerate("ab"))
    queue.add(a)
    queue.charge(row_of(a, 0, 50))
    queue.add(b)
    assert queue.counter("b") == 50, "the least of those that wait"
    queue.charge(row_of(b, 0, 30))
    queue.remove(b)
    queue.remove(a)
    queue.add(make_request(3, [1], fairness_key="c"))
    assert queue.counter("c") == 50, "what the last one that left has"
    queue.add(make_request(4, [1], fairness_key="b"))
    assert queue.counter("b") == 80, "what it owes is not forgotten"


def test_only_what_is_computed_for_the_first_time_is_charged() -> None:
    queue = FairQueue()
    request = make_request(1, prompt_of(40))
    queue.add(request)
    queue.charge(row_of(request, 16, 10))  # the first block was cached
    queue.settle()
    assert queue.counter("") == 10
    queue.charge(row_of(request, 0, 30))  # preempted, and its blocks are gone
    queue.settle()
    assert queue.counter("") == 14
    queue.charge(row_of(request, 30, 10, outputs=3))
    queue.charge(row_of(request, 40, 1, outputs=1))
    assert queue.counter("") == 24 + 4 * OUTPUT_WEIGHT


def test_a_failed_step_costs_nothing() -> None:
    queue = FairQueue()
    request = make_request(1, prompt_of(40))
    queue.add(request)
    queue.charge(row_of(request, 0, 40, outputs=1))
    queue.revoke()
    assert (queue.counter(""), request.num_charged) == (0, 0)
    queue.charge(row_of(request, 0, 40))
    queue.settle()
    assert queue.counter("") == 40


def test_counters_of_absent_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ABSENT", 8)
    queue = FairQueue()
    queue.add(make_request(1, prompt_of(9), fairness_key="stays"))
    debtor = make_request(0, prompt_of(9), fairness_key="debtor")
    queue.add(debtor)
    queue.charge(row_of(debtor, 0, 9, outputs=500))
    queue.remove(debtor)
    queue.settle()
    for i in range(2, 200):
        request = make_request(i, prompt_of(9), fairness_key=f"key {i}")
        queue.add(request)
        queue.charge(row_of(request, 0, 9))
        queue.remove(request)
        queue.settle()
        assert queue.num_keys <= 8 + 2
    assert queue.counter("debtor") >= 1000, "who owes most is remembered longest"
    assert queue.counter("key 2") == 0


class Account:
    """An independent count of what each key was served, from the steps that were run."""

    def __init__(self) -> None:
        self.service: Counter[str] = Counter()
        self._computed: Counter[RequestId] = Counter()

    def add(self, row: Row) -> None:
        request = row.request
        for position in range(row.start, row.start + len(row.token_ids)):
            first = position >= self._computed[request.id]
            if first and position < len(request.prompt_ids):
                self.service[request.fairness_key] += INPUT_WEIGHT
        end = row.start + len(row.token_ids)
        self._computed[request.id] = max(self._computed[request.id], end)
        self.service[request.fairness_key] += OUTPUT_WEIGHT * len(row.samples)


@settings(max_examples=80)
@given(
    greedy=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=8, max_size=24),
    modest=st.lists(
        st.tuples(
            st.sampled_from(["", "b", "c"]),
            st.sampled_from([0, 3, 20, 60, 150]),
            st.integers(1, 60),
            st.integers(1, 20),
        ),
        max_size=14,
    ),
    max_num_seqs=st.integers(1, 4),
    num_blocks=st.integers(6, 16),
)
@example(  # a key that comes late, with much to do
    greedy=[(60, 1)] * 24, modest=[("b", 30, 60, 20)] * 8, max_num_seqs=1, num_blocks=8
)
def test_service_of_two_keys_that_both_wait_differs_by_no_more_than_the_bound(
    greedy: list[tuple[int, int]],
    modest: list[tuple[str, int, int, int]],
    max_num_seqs: int,
    num_blocks: int,
) -> None:
    """Theorem 4.4 of the paper, between any two moments of a time in which both wait."""
    driver = Driver(
        scheduling_policy="fair",
        max_num_seqs=max_num_seqs,
        num_blocks=num_blocks,
        max_batched_tokens=32,
        long_prefill_tokens=16,
        prefix_caching=False,
    )
    loads = [("greedy", 0, *load) for load in greedy] + modest
    coming: dict[int, list[Request]] = {}
    requests = []
    for i, (key, at, prompt, outputs) in enumerate(loads):
        made = make_request(
            i, prompt_of(prompt, i), max_tokens=outputs, arrival=float(at), fairness_key=key
        )
        requests.append(made)
        coming.setdefault(at, []).append(made)
    prompt = max(len(r.prompt_ids) for r in requests)
    at_once = max_num_seqs * max(len(r.prompt_ids) + r.stop.max_tokens for r in requests)
    bound = 2 * max(INPUT_WEIGHT * prompt, OUTPUT_WEIGHT * at_once)
    account = Account()
    extremes: dict[tuple[str, str], tuple[int, int]] = {}
    steps = 0
    while coming or driver.scheduler.has_work():
        driver.add(*coming.pop(steps, ()))
        steps += 1
        waiting = {r.fairness_key for r in driver.scheduler._roster.waiting}
        pairs = [(a, b) for a in waiting for b in waiting if a < b]
        extremes = {pair: extremes[pair] for pair in pairs if pair in extremes}
        for a, b in pairs:
            difference = account.service[a] - account.service[b]
            low, high = extremes.get((a, b), (difference, difference))
            low, high = extremes[a, b] = min(low, difference), max(high, difference)
            assert high - low <= bound
        step = driver.step()
        for row in step.rows if step is not None else ():
            account.add(row)
        assert steps < 5000, "somebody starves"
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]
    driver.assert_idle()


def test_a_modest_key_does_not_wait_for_all_that_a_greedy_one_asks_for() -> None:
    def waits(policy: str) -> float:
        driver = Driver(scheduling_policy=policy, max_num_seqs=1)  # type: ignore[arg-type]
        driver.add(
            *(make_request(i, prompt_of(5, i), max_tokens=10, fairness_key="a") for i in range(20))
        )
        driver.step()
        modest = make_request(99, prompt_of(5, 99), max_tokens=10, fairness_key="b")
        driver.add(modest)
        driver.finish_all()
        assert modest.first_scheduled is not None
        return modest.first_scheduled

    assert (waits("fcfs"), waits("fair")) == (201.0, 11.0)
