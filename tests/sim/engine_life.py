"""One simulated engine process: everything real but the runner and the time that a step takes.

A step is computed at once, but what it says comes out when its time has passed, as from a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from typing import Any, NoReturn, TypeVar

from tests.engine.harness import IDENTITY, TEMPLATE, Engine
from tests.fakes import BLOCK, BYTE_VOCAB, EOS, byte_tokenizer_json
from tests.sim.engine_link import serve_shell
from tests.sim.env import SimEnv
from tests.sim.fake_model import SimRunner
from tests.sim.health import Health
from tests.sim.history import History
from tests.sim.net import Net
from tests.sim.options import Options
from tests.sim.requests import BOS, poison_of

from octavo.engine.batch import StepInput
from octavo.engine.core import Ticket
from octavo.engine.health import Health as EngineHealth
from octavo.engine.health import watch
from octavo.engine.prompt import PromptEncoder
from octavo.engine.request import Request
from octavo.engine.session import EngineShell, Loaded
from octavo.engine.spans import RequestSpans
from octavo.engine.stepper import (
    HEARTBEAT_S,
    Bundle,
    Cancel,
    CancelAll,
    Command,
    Drain,
    Stepper,
    Submit,
)
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import DIGEST_BYTES

_T = TypeVar("_T")

PORT = 50051
_ABORT = common_pb2.FINISH_REASON_ABORT
NUMERICS = "fake-numerics"


class ProcessDeathError(BaseException):
    """The process is gone, in the middle of whatever it did."""


@functools.cache
def _files() -> tuple[tuple[str, bytes], ...]:
    return (
        ("tokenizer.json", byte_tokenizer_json()),
        ("chat_template.jinja", TEMPLATE.encode()),
    )


@functools.cache
def _encoder() -> PromptEncoder:
    tokenizer = Tokenizer.from_json(_files()[0][1])
    template = ChatTemplate(TEMPLATE, bos_token="<|begin|>", eos_token="<|end|>")
    return PromptEncoder(tokenizer, template, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the places of one run have in common."""

    net: Net
    history: History
    health: Health
    options: Options
    seed: int


class Life:
    """One engine process."""

    def __init__(self, name: str, site: Site, env: SimEnv) -> None:
        options, loop = site.options, site.net.loop
        self.epoch = int(env.new_id()[:15], 16)
        self.step_error = False
        self.stuck = False
        self.slow_by = 1.0
        """How many times as long steps take."""
        self.stored: set[bytes] = set()
        """Every block that this process ever published."""
        self._name = name
        self._site = site
        self._history = site.history
        self._loop = loop
        self._ahead_s = 0.0
        self._began: float | None = None
        self._news = asyncio.Event()
        self._bundles: list[Bundle] = []
        self._ends: list[Cancel | CancelAll] = []
        self._sessions: dict[object, int] = {}
        self._drained = False
        self._idle_turns = self._passed_over = self._step_tokens = 0
        self.engine = Engine(
            num_blocks=options.num_blocks,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_batched_tokens=options.max_batched_tokens,
            max_queued_requests=options.max_queued_requests,
            step_target_s=0.1,
            runner=SimRunner(before=self._before, poison=self._is_nan, report=self._report),
            clock=lambda: loop.time() + self._ahead_s,
        )
        self.shell = EngineShell(epoch=self.epoch, spans=RequestSpans())
        self.stepper = Stepper(
            self.engine.core,
            publish=self._bundles.append,
            wake=self._news.set,
            clock=lambda: loop.time() + self._ahead_s,
        )
        self.shell.attach(
            Loaded(card=self._card(), files=_files(), encoder=_encoder(), put=self._put)
        )
        self.over = asyncio.Event()
        self.draining = False
        self._process = loop.process(name)

    def spawn(self, work: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
        """Begins a task of the process."""
        return self._loop.spawn(self._process, work)

    async def until(self, *tasks: asyncio.Task[Any]) -> None:
        """Waits until one of its tasks has ended, or the process has."""
        over = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait((*tasks, over), return_when="FIRST_COMPLETED")
        finally:
            over.cancel()

    def tickets(self) -> list[Ticket]:
        """Everything that runs or waits here."""
        return list({id(t): t for t, _ in self.engine.core._owner.values()}.values())

    @property
    def num_free(self) -> int:
        """Blocks that no request holds."""
        scheduler = self.engine.scheduler
        return scheduler.num_free_blocks + scheduler.num_cached_free_blocks

    async def guard(self) -> str:
        """The watchdog; returns the cause of death."""

        async def tell(serving: bool) -> None:
            self._history.trace("serving", self._name, serving)

        await watch(self._health, limit_s=self._site.options.watchdog_s, tell=tell)
        return "watchdog"

    def _health(self) -> EngineHealth:
        age = 0.0 if self._began is None else self._loop.time() - self._began
        return EngineHealth(stage="ready", step=self.engine.core.steps, step_age_s=age, stale_s=1e9)

    async def drain(self, grace_s: float) -> None:
        """Finishes or hands over what runs, then gives the server a moment to say it."""
        async for remaining in self.shell.drain(grace_s):
            self._history.trace("draining", self._name, remaining)
        await asyncio.sleep(0.3)

    async def serve(self) -> NoReturn:
        """Opens the port and steps for ever."""
        serve_shell(self._site.net, self._name, PORT, self.shell)
        while True:
            more = self._turn()
            if self.stuck:
                await asyncio.Event().wait()
            if self._ahead_s:
                await asyncio.sleep(self._ahead_s)
                self._ahead_s = 0.0
            self._began = None
            for bundle in self._bundles:
                self._publish(bundle)
            self._bundles.clear()
            if more:
                await asyncio.sleep(0)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()
            self._news.clear()

    def _turn(self) -> bool:
        began = self._began = self._loop.time()
        ends, self._ends = self._ends, []
        steps = self.engine.core.steps
        more = self.stepper.turn()
        self._check(ends, steps, began)
        return more

    def _check(self, ends: list[Cancel | CancelAll], steps: int, now: float) -> None:
        engine, history, name = self.engine, self._history, self._name
        if ends or engine.core.steps != steps:
            engine.scheduler.check_integrity()
        for ticket in self.tickets() if ends else ():
            for end in ends:
                mine = end.sink is None or ticket.sink is end.sink
                key = (ticket.proto.request_id, ticket.proto.attempt)
                named = not isinstance(end, Cancel) or key == (end.request_id, end.attempt)
                history.check(not (mine and named), "E4", f"{name} still runs {key} after {end}")
        if engine.core.num_open == 0:
            total = self._site.options.num_blocks
            history.check(self.num_free == total, "E1", f"{name}: {self.num_free}/{total} free")
        stood = engine.core.num_open > 0 and engine.core.steps == steps
        self._idle_turns = self._idle_turns + 1 if stood else 0
        history.check(self._idle_turns < 20, "E6", f"{name}: no step though requests are open")
        late = [r.id for r in engine.scheduler.requests() if (r.deadline or inf) < now]
        history.check(stood or not late, "C6", f"{name} runs {late} beyond their deadlines")
        self._passed_over = self._passed_over + 1 if self._passes_over() else 0
        history.check(self._passed_over < 10, "E3", f"{name}: a request waits for nothing")

    def _passes_over(self) -> bool:
        """Whether a small step was made though the first in the queue would have fitted."""
        scheduler = self.engine.scheduler
        roster, small = scheduler._roster, self._step_tokens < 16
        if not small or not roster.waiting or roster.suspects:  # whom all others wait for
            return False
        return scheduler._planner._fits(roster.waiting.head)

    def _publish(self, bundle: Bundle) -> None:
        history, name = self._history, self._name
        for _, proto in bundle.accepted:
            ref = f"{proto.request_id} {proto.attempt}"
            history.check(not self._drained, "G3", f"{name} accepted {ref} after its drain ack")
        self._drained = bundle.draining
        for sink, proto, _ in bundle.refused:
            history.refused.add((self._who(sink), proto.request_id, proto.attempt))
        for sink, delta in bundle.deltas:
            self._note(self._who(sink), delta)
            self._history.handovers[delta.request_id] += delta.finish_reason == _ABORT
        self.stored.update(h for h, _ in bundle.stored)
        self.shell.on_bundle(bundle)

    def _who(self, sink: object) -> str:
        """Names a session: two gateways may, without a store, run the same attempt."""
        number = self._sessions.setdefault(sink, len(self._sessions))
        return f"{self._name}.{self.epoch}.{number}"

    def _note(self, session: str, delta: engine_pb2.Delta) -> None:
        key = (session, delta.request_id, delta.attempt)
        lengths = self._history.delivered.setdefault(key, {})
        known = lengths.setdefault(delta.choice, delta.position)
        self._history.check(delta.position == known, "C3", f"{key}: {delta.position} != {known}")
        lengths[delta.choice] = known + len(delta.token_ids)
        ids = list(delta.token_ids)
        self._history.trace(*key, delta.choice, delta.position, ids, delta.finish_reason)

    def _put(self, command: Command) -> None:
        match command:
            case Submit(proto=proto):
                self._history.receive(self._name, self.epoch, proto)
            case Cancel() | CancelAll():
                self._ends.append(command)
            case Drain():
                self._history.trace("drain", self._name)
        self.stepper.put(command)

    def _before(self, step: StepInput) -> None:
        options = self._site.options
        self._step_tokens = step.num_tokens
        self._ahead_s += (options.step_s + options.token_s * step.num_tokens) * self.slow_by
        if options.poisons:
            for row in step.rows:
                self._act(row.request)
        if self.step_error:
            self.step_error = False
            if len(step.rows) == 1:
                self._history.broken.add(self._proto_id(step.rows[0].request))
            raise RuntimeError("injected: the step failed")

    def _act(self, request: Request) -> None:
        kind, at = poison_of(request.prompt_ids)
        if kind in ("raise", "kill") and len(request.output_ids) >= at:
            self._history.count(f"poison.{kind}")
            if kind == "kill":
                raise ProcessDeathError("poison")
            raise RuntimeError("injected: poison")

    def _proto_id(self, request: Request) -> str:
        return self.engine.core._owner[request.id][0].proto.request_id

    def _is_nan(self, request: Request) -> bool:
        kind, at = poison_of(request.prompt_ids) if self._site.options.poisons else ("", 0)
        return kind == "nan" and len(request.output_ids) >= at

    def _report(self, detail: str) -> None:
        self._history.violate("E1", f"{self._name}: {detail}")

    def _card(self) -> engine_pb2.ModelCard:
        options = self._site.options
        files = [
            engine_pb2.CardFile(
                name=name,
                size_bytes=len(data),
                blake2b=blake2b(data, digest_size=DIGEST_BYTES).digest(),
            )
            for name, data in _files()
        ]
        return engine_pb2.ModelCard(
            epoch=self.epoch,
            model="fake",
            served_names=["fake"],
            identity=IDENTITY,
            block_tokens=BLOCK,
            num_blocks=options.num_blocks,
            max_model_len=options.max_model_len,
            vocab_size=BYTE_VOCAB,
            max_num_seqs=options.max_num_seqs,
            eos_token_ids=[EOS],
            bos_token_id=BOS,
            numerics_id=NUMERICS,
            exact=True,
            weights_version="w",
            files=files,
            features=7,
        )
