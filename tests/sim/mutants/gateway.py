"""Bugs in attempts, fleet, index, answers and bounds of the gateway."""

# ruff: noqa: ARG005 - a bug ignores what it should look at

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, mutant

from octavo.engine.state_feed import Subscription
from octavo.gateway.api.events import Events
from octavo.gateway.api.running import Running
from octavo.gateway.api.tally import Tally
from octavo.gateway.attempts import AttemptTable
from octavo.gateway.generation import Generation
from octavo.gateway.heartbeat import Silence
from octavo.gateway.prefix_index import PrefixIndex
from octavo.gateway.replica import Replica
from octavo.gateway.retry_budget import RetryBudget
from octavo.v1 import engine_pb2

MUTANTS: list[Mutant] = []


@mutant(MUTANTS, PrefixIndex, "release", "G1")
def promise_is_kept_for_ever(original: Any) -> Any:
    return lambda self, hashes: None


@mutant(MUTANTS, AttemptTable, "_end", "G1")
def choices_are_counted_twice(original: Any) -> Any:
    def end(self: AttemptTable, key: Any, error: Any) -> bool:
        attempt = self._open.get(key)
        ended = bool(original(self, key, error))
        if ended and error is not None and attempt is not None:
            self._num_choices += attempt.num_choices
        return ended

    return end


@mutant(MUTANTS, AttemptTable, "cancel", "G1", "E4")
def cancel_is_not_sent(original: Any) -> Any:
    return lambda self, attempt, error=None: attempt.end(error)


@mutant(MUTANTS, PrefixIndex, "apply", "G2")
def removed_blocks_stay(original: Any) -> Any:
    def apply(self: PrefixIndex, update: Any) -> None:
        copy = engine_pb2.StateUpdate()
        copy.CopyFrom(update)
        copy.ClearField("removed")
        original(self, copy)

    return apply


@mutant(MUTANTS, PrefixIndex, "apply", "G2")
def blocks_outlive_their_engine(original: Any) -> Any:
    def apply(self: PrefixIndex, update: Any) -> None:
        before = set(self._held) if update.epoch != self._epoch else set()
        original(self, update)
        self._held |= before

    return apply


@mutant(MUTANTS, PrefixIndex, "apply", "G2")
def gap_goes_unnoticed(original: Any) -> Any:
    def apply(self: PrefixIndex, update: Any) -> None:
        if self._seq:
            self._seq = update.seq - 1
        original(self, update)

    return apply


@mutant(MUTANTS, Subscription, "note", "G2")
def eviction_is_not_told(original: Any) -> Any:
    def note(self: Subscription, changed: Any, *, cleared: bool, load: bool) -> None:
        original(self, changed[: len(changed) // 2], cleared=cleared, load=load)

    return note


@mutant(MUTANTS, Replica, "ready", "G3")
def draining_engine_is_chosen(original: Any) -> Any:
    def ready(self: Replica) -> bool:
        draining = self.stage == engine_pb2.STAGE_DRAINING and self._session is not None
        return draining or bool(original.fget(self))

    return property(ready)


@mutant(MUTANTS, Silence, "tick", "G6", "C2")
def hung_engine_is_trusted(original: Any) -> Any:
    return lambda self, now: False


@mutant(MUTANTS, Silence, "heard", "G6")
def heartbeats_are_not_heard(original: Any) -> Any:
    return lambda self: None


@mutant(MUTANTS, RetryBudget, "take", "G7")
def retries_have_no_budget(original: Any) -> Any:
    return lambda self: True


@mutant(MUTANTS, Events, "last", "C2")
def done_is_missing(original: Any) -> Any:
    return lambda self: b""


@mutant(MUTANTS, Events, "error", "C2")
def done_follows_an_error(original: Any) -> Any:
    return lambda self, error: original(self, error) + b"data: [DONE]\n\n"


@mutant(MUTANTS, Events, "of", "C1", "C3")
def empty_text_is_left_out(original: Any) -> Any:
    def of(self: Events, choice: Any, delta: Any) -> bytes:
        return original(self, choice, delta) if delta.text or delta.finish_reason else b""

    return of


@mutant(MUTANTS, Tally, "usage", "C3")
def usage_counts_a_choice(original: Any) -> Any:
    def usage(self: Tally) -> dict[str, object]:
        told = original(self)
        told["completion_tokens"] //= len(self.choices)
        return dict(told)

    return usage


@mutant(MUTANTS, Running, "_put", "G4")
def slow_client_has_no_bound(original: Any) -> Any:
    def put(self: Running, prompt: int, delta: Any) -> None:
        self._deltas.append((prompt, delta))
        self._pending_bytes += delta.ByteSize()
        self._wake()

    return put


@mutant(MUTANTS, Generation, "abandon", "E4", "G1")
def leaving_client_is_served_on(original: Any) -> Any:
    def abandon(self: Generation) -> None:
        if not self._ended:
            self._ended = True
            self._shared.open.pop(self, None)
            self._journal.cancelled(output_tokens=0)

    return abandon
