"""What must hold of the recorded history, checked as soon as it can be: C1 to C5, E5, G5, G7."""

from __future__ import annotations

from collections import Counter

from tests.engine.harness import Engine
from tests.sim.answers import Seen, SeenChoice, see
from tests.sim.fake_model import Answer, SimRunner, undisturbed
from tests.sim.health import Health
from tests.sim.history import History, Sent, Try
from tests.sim.options import Options

from octavo.gateway import retry_budget
from octavo.gateway.once import ATTEMPTS_PER_TRY
from octavo.v1 import engine_pb2, errors

KINDS = {kind.code: kind for kind in vars(errors).values() if isinstance(kind, errors.ErrorKind)}
_LATER = ("OCT-2001", "OCT-2002", "OCT-2004", "OCT-2005", "OCT-2009", "OCT-2010")
"""Errors that must say when to come back."""
_BEFORE = (*_LATER, "OCT-2007")
_NEVER = ("OCT-5002",)
"""Errors that only a bug can cause."""


class TryValidator:
    """Judges each try when it has ended."""

    def __init__(self, history: History, options: Options, health: Health) -> None:
        self._history = history
        self._options = options
        self._health = health
        self._seen = 0
        self._open: list[Try] = []

    def check_new(self) -> None:
        """Judges what has ended since the last call."""
        self._open += self._history.tries[self._seen :]
        self._seen = len(self._history.tries)
        ended = [t for t in self._open if t.end]
        self._open = [t for t in self._open if not t.end]
        for attempt in ended:
            self.check(attempt)

    def check(self, attempt: Try) -> None:
        """Judges one try."""
        try:
            seen = see(attempt)
        except (ValueError, KeyError, TypeError) as error:
            self._fail("C1", attempt, f"unreadable answer: {error!r}")
            return
        if attempt.status == 200:
            self._check_content(attempt, seen)
        elif attempt.status:
            self._check_refusal(attempt, seen)
        elif attempt.end in ("complete", "incomplete"):
            self._fail("C2", attempt, "no answer at all")
        code = seen.errors[0]["octavo"]["code"] if seen.errors else ""
        if code:
            self._history.count(f"error.{code}")
            self._check_excuse(attempt, code, str(seen.errors[0]["message"]))

    def _fail(self, name: str, attempt: Try, detail: str) -> None:
        self._history.violate(name, f"{attempt.spec.name} at {attempt.gateway}: {detail}")

    def _expected(self, attempt: Try) -> list[Answer] | None:
        received = self._history.received.get(attempt.id)
        seed = attempt.spec.seed
        if received is None:
            return None
        seeds = {r.proto.sampling.seed for r in received}
        prompts = {tuple(r.proto.token_ids.ids) for r in received}
        if len(seeds) > 1 or prompts != {tuple(attempt.spec.prompt_ids())}:
            self._fail("C1", attempt, f"attempts differ: seeds {seeds}, {len(prompts)} prompts")
        if seed is not None and seeds != {seed}:
            self._fail("C1", attempt, f"seed {seed} became {seeds}")
        max_model_len = self._options.max_model_len
        return undisturbed(
            attempt.spec, received[0].proto.sampling.seed, max_model_len=max_model_len
        )

    def _check_content(self, attempt: Try, seen: Seen) -> None:
        whole = attempt.end == "complete"
        if whole and not (attempt.spec.stream or seen.choices):
            self._fail("C2", attempt, "200 without an answer")
        expected = self._expected(attempt)
        if expected is None:
            if seen.choices:
                self._fail("C1", attempt, "an answer that no engine computed")
            return
        for index, choice in seen.choices.items():
            self._check_choice(attempt, expected[index], choice)
        if seen.after_end:
            self._fail("C2", attempt, f"{seen.after_end} events after the end")
        if whole:
            self._check_whole(attempt, seen, expected)
        elif attempt.end == "incomplete" and (len(seen.errors) != 1 or seen.done):
            if attempt.spec.stall_after is not None and not seen.done:
                return  # it could not be told
            self._fail("C2", attempt, f"{len(seen.errors)} errors, {seen.done} DONE, cut off")
        elif seen.done or len(seen.errors) > 1:
            self._fail("C2", attempt, f"{len(seen.errors)} errors, {seen.done} DONE")

    def _check_choice(self, attempt: Try, expected: Answer, choice: SeenChoice) -> None:
        """What is there so far continues as the undisturbed answer."""
        ids, logprobs = tuple(choice.ids), tuple(choice.logprobs)
        if ids != expected.ids[: len(ids)]:
            self._fail("C1", attempt, f"ids {ids} are not the beginning of {expected.ids}")
        elif choice.text != expected.text[: len(choice.text)]:
            self._fail("C1", attempt, f"text {choice.text!r} of {expected.text!r}")
        elif logprobs != expected.logprobs[: len(logprobs)]:
            self._fail("C1", attempt, f"logprobs {logprobs} of {expected.logprobs}")
        elif choice.ends > 1:
            self._fail("C2", attempt, f"{choice.ends} finish reasons of one choice")
        elif choice.finish_reason:
            same = (ids, choice.text) == (expected.ids, expected.text)
            if not same or choice.finish_reason != expected.finish_reason:
                self._fail("C1", attempt, f"ended as {choice}, not {expected}")
            if attempt.spec.logprobs is not None and len(logprobs) != len(ids):
                self._fail("C1", attempt, f"{len(logprobs)} logprobs of {len(ids)} tokens")

    def _check_whole(self, attempt: Try, seen: Seen, expected: list[Answer]) -> None:
        spec = attempt.spec
        if seen.errors or seen.done != int(spec.stream):
            self._fail("C2", attempt, f"{len(seen.errors)} errors, {seen.done} DONE, whole body")
        if len(seen.choices) != spec.n or not all(c.finish_reason for c in seen.choices.values()):
            self._fail("C2", attempt, "a choice is missing or has no end")
        if any(r.proto.resumes for r in self._history.received[attempt.id]):
            self._history.count("answer.resumed")
        count = sum(len(a.ids) for a in expected)
        if seen.completion_tokens != count:
            self._fail("C3", attempt, f"usage says {seen.completion_tokens} of {count} tokens")
        if spec.prompt_logprobs and seen.prompt_logprobs != len(spec.prompt_ids()):
            self._fail("C1", attempt, f"{seen.prompt_logprobs} prompt logprobs")
        if spec.poison:
            self._fail("G5", attempt, f"poison {spec.poison} did no harm")

    def _check_refusal(self, attempt: Try, seen: Seen) -> None:
        if attempt.end == "incomplete" or (attempt.end == "complete" and len(seen.errors) != 1):
            self._fail("C2", attempt, f"status {attempt.status} without one whole error")
            return
        if not seen.errors:
            return
        kind = KINDS.get(seen.errors[0]["octavo"]["code"])
        if kind is None or kind.status != attempt.status or kind.status < 300:
            self._fail("C2", attempt, f"status {attempt.status} with {seen.errors[0]}")
        elif kind.code in _LATER and "retry-after" not in attempt.headers:
            self._fail("C2", attempt, f"{kind.code} without Retry-After")
        elif kind.status in (400, 404, 413) and attempt.id in self._history.sent:
            self._fail("C4", attempt, f"refused with {kind.code}, but was sent to engines")

    def _check_excuse(self, attempt: Try, code: str, message: str) -> None:
        """An error needs a reason."""
        spec, health = attempt.spec, self._health
        if code in _NEVER:
            self._fail("C1", attempt, f"{code} can only be a bug")
        if spec.poison:
            return
        if code not in health.excused(attempt):
            self._fail("C1", attempt, f"{code} ({message}) without an excuse")


def check_end(history: History) -> None:
    """Judges what only the whole run shows."""
    killers = Counter[str]()
    for death in history.deaths:
        if death.cause == "poison":
            poisoned = [i for i in death.running if _is_poison(history, i)]
            killers.update(poisoned)
    # A death that looks like a silence cannot be told from one.
    masked = any(kind in ("cut", "clog", "pause", "stuck") for _, kind, _ in history.faults)
    for request_id, count in killers.items():
        allowed = 3 if masked or _had_company(history, request_id) else 2
        history.check(count <= allowed, "G5", f"{request_id} took {count} engines down")
    _check_budget(history)
    _check_keys(history)
    for key in history.refused & history.delivered.keys():
        history.violate("C4", f"{key} was refused and answered")


def _had_company(history: History, request_id: str) -> bool:
    """Whether another suspect was on the engine of its second attempt: then nobody is to blame."""
    second = [(s.gateway, s.engine, s.epoch) for s in history.sent[request_id] if s.deaths == 1]
    return any(
        s.deaths and (s.gateway, s.engine, s.epoch) in second
        for other, sent in history.sent.items()
        if other != request_id
        for s in sent
    )


def _is_poison(history: History, request_id: str) -> bool:
    proto = history.received[request_id][0].proto
    return b"!kill" in bytes(i for i in proto.token_ids.ids[:32] if i < 256)


def _check_budget(history: History) -> None:
    """Second attempts are a tenth of the requests, and a few; not what a death or a drain costs."""
    drained = {target for _, kind, target in history.faults if kind == "drain"}
    extra, requests = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for request_id, entries in history.sent.items():
        tries: dict[tuple[str, int, int], list[Sent]] = {}
        for sent in entries:
            key = sent.gateway, sent.life, sent.attempt // ATTEMPTS_PER_TRY
            tries.setdefault(key, []).append(sent)
        for (gateway, life, _), attempts in tries.items():
            requests[gateway, life] += 1
            if not attempts[-1].deaths and not history.handovers[request_id]:
                before = (s.engine.partition(":")[0] for s in attempts[:-1])
                extra[gateway, life] += sum(engine not in drained for engine in before)
    for process, count in extra.items():
        allowed = retry_budget.MINIMUM + retry_budget.SHARE * requests[process]
        history.check(count <= allowed, "G7", f"{process}: {count} retries of {requests[process]}")


def _check_keys(history: History) -> None:
    """One key, one generation (C5); two may be without a store, or for a gateway that was stopped
    while it claimed."""
    ids: dict[str, set[str]] = {}
    for attempt in history.tries:
        if attempt.spec.key and attempt.status == 200:
            ids.setdefault(attempt.spec.key, set()).add(attempt.id)
    disturbed = any(
        kind == "redis" or (kind == "pause" and target.startswith("gateway"))
        for _, kind, target in history.faults
    )
    for key, found in ids.items():
        history.count("key.used")
        history.check(len(found) == 1 or disturbed, "C5", f"{key} got the answers {found}")


def check_alone(history: History, options: Options) -> None:
    """What was computed among others is computed alone as well (E5)."""
    whole = [t for t in history.tries if t.end == "complete" and t.status == 200]
    for attempt in whole[:2]:
        proto = engine_pb2.GenerateRequest()
        proto.CopyFrom(history.received[attempt.id][0].proto)
        for name in ("resumes", "remaining_ms", "age_ms"):
            proto.ClearField(name)
        runner = SimRunner(before=lambda _: None, poison=lambda _: False, report=_raise)
        engine = Engine(runner=runner, max_model_len=options.max_model_len)
        ticket = engine.submit(proto)
        engine.run()
        for index, choice in see(attempt).choices.items():
            alone = engine.ids(ticket, index)
            detail = f"{attempt.spec.name}: {choice.ids} among others, {alone} alone"
            history.check(choice.ids == alone, "E5", detail)


def _raise(detail: str) -> None:
    raise AssertionError(detail)
