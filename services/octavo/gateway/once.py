"""Requests with an idempotency key: each is generated once, whoever asks and how often.

    join      → a client at the KeptAnswer of a key: begun now, running here, or ended a while ago
      └ task  claim it in the store → generate, or wait for another gateway → settle the claim

The generation does not belong to a client: when all have left it goes on for a while, so that a
retry finds it. A failed one frees its key. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from octavo.gateway.catalogue import DEFAULT_RETRY_MS
from octavo.gateway.claims import Claim, Claims
from octavo.gateway.dispatch import SEED_BITS, Call, Dispatcher
from octavo.gateway.ended_answers import EndedAnswers
from octavo.gateway.idempotency import PARAM, Entry, Identity, State, next_try
from octavo.gateway.kept_answer import Joined, KeptAnswer
from octavo.gateway.metrics import GatewayMetrics
from octavo.runtime.env import Env
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    DRAINING,
    ENGINE_FAILURE,
    IDEMPOTENCY_KEY_REUSED,
    INTERNAL,
    OctavoError,
)
from octavo.v1.validation import choices_of

log = structlog.get_logger(__name__)

MAX_ABANDONED: Final = 64
"""Generations without a reader; the one that has been alone the longest makes room."""
MIN_DROP_BYTES: Final = 64 * 1024
"""What is kept of smaller answers is not worth a retry that could have had it."""
ATTEMPTS_PER_TRY: Final = 1000
"""Tries share an id, so their attempts need numbers of their own."""


class Once:
    """The keyed answers of one gateway.

    Args:
        dispatcher: generates.
        claims: shared with other gateways; None keeps to this process.
        metrics: counts what became of keyed requests.
        env: seeds.
        ttl_s: how long an ended answer is kept.
        grace_s: how long a generation goes on without a reader.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        claims: Claims | None,
        *,
        metrics: GatewayMetrics,
        env: Env,
        ttl_s: float,
        grace_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._claims = claims
        self._metrics = metrics
        self._random = env.rng("idempotency")
        self._grace_s = grace_s
        self._running: dict[str, KeptAnswer] = {}
        self._ended = EndedAnswers(ttl_s=ttl_s)
        self._abandoned: dict[KeptAnswer, None] = {}
        self._timers: dict[KeptAnswer, asyncio.TimerHandle] = {}
        """The grace of running answers without readers."""
        self._tasks: dict[KeptAnswer, asyncio.Task[None]] = {}
        self._claiming: set[KeptAnswer] = set()
        """Whose claim is still to be had; another gateway may generate them."""

    @property
    def num_abandoned(self) -> int:
        """Generations whose readers have all left."""
        return len(self._abandoned)

    async def join(
        self, key: str, fingerprint: str, calls: Sequence[Call], *, id: str, created: int
    ) -> Joined:
        """Has a client read the answer of a key, which is begun now if need be.

        Args:
            key: digest of tenant and key.
            fingerprint: of what is asked.
            calls: one for each prompt; a new answer draws the seeds that they lack.
            id: for a new answer.
            created: for a new answer, Unix seconds.

        Raises:
            OctavoError: the key belongs to another body, or its answer cannot be given again.
        """
        answer = self._running.get(key) or self._ended.get(key)
        found = answer is not None and answer.state != "free"
        if answer is None or not found:
            identity = Identity(id=id, created=created, seeds=tuple(map(self._seed, calls)))
            wanted = Entry(key=key, fingerprint=fingerprint, identity=identity)
            answer = self._begin(wanted, calls, after=answer)
        elif answer.entry.fingerprint != fingerprint:
            raise OctavoError(IDEMPOTENCY_KEY_REUSED, param=PARAM)
        joined = Joined(answer, found=found)
        try:
            await joined.known()
        except BaseException:
            joined.close()
            raise
        if found:
            self._count("joined")
        return joined

    def give_up(self, wanted_bytes: int) -> int:
        """Keeps the largest running answers no longer, until so many bytes should come free.

        Their readers go on; without readers they end with their next delta. Returns how many bytes
        that makes.
        """
        given_up = 0
        for answer in sorted(self._running.values(), key=lambda a: -a.num_bytes):
            if given_up >= wanted_bytes or answer.num_bytes < MIN_DROP_BYTES:
                break
            given_up += answer.num_bytes
            answer.drop()
            self._count("dropped")
        return given_up

    def abort(self) -> None:
        """Ends all generations and waits for those of other gateways; their readers are told."""
        self._dispatcher.abort()
        for answer in self._claiming:
            self._tasks[answer].cancel()

    async def close(self, timeout_s: float) -> None:
        """Lets ended answers reach the store, for so long at most; cuts off the others."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for answer in list(self._running.values()):
            self._drop(answer)
        self._ended.clear()

    def check_integrity(self) -> None:
        """Asserts that what is counted is there."""
        running = set(self._running.values())
        assert set(self._abandoned) <= set(self._timers) <= running <= set(self._tasks)
        assert self._claiming <= set(self._tasks)
        self._ended.check_integrity()

    def _begin(
        self, wanted: Entry, calls: Sequence[Call], *, after: KeptAnswer | None
    ) -> KeptAnswer:
        if after is not None:
            self._ended.remove(wanted.key)
            wanted = next_try(after.entry, wanted)
        answer = KeptAnswer(wanted, on_empty=self._left, on_read=self._read)
        self._running[wanted.key] = answer
        self._tasks[answer] = asyncio.create_task(self._run(answer, calls))
        return answer

    async def _run(self, answer: KeptAnswer, calls: Sequence[Call]) -> None:
        try:
            claim = await self._claim(answer)
            if claim.entry.state == "finished":
                answer.load(claim.entry.deltas)
                self._retire(answer, "finished")
            else:
                await self._produce(answer, claim, calls)
        except OctavoError as error:
            answer.refuse(error)
            self._drop(answer)
        except asyncio.CancelledError:
            # Nobody waits any more; otherwise the process ends, and its lease will run out.
            if answer.state == "running":
                answer.refuse(OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS))
                self._drop(answer)
                raise
        except Exception:
            log.exception("keyed_request_crashed", id=answer.entry.identity.id)
            answer.refuse(OctavoError(INTERNAL, id=answer.entry.identity.id))
            self._drop(answer)
        finally:
            del self._tasks[answer]

    async def _claim(self, answer: KeptAnswer) -> Claim:
        """Returns the claim, its entry adopted; raises OctavoError when the key is taken."""

        def waits(entry: Entry) -> None:
            answer.repeated = True
            self._adopt(answer, entry)

        claim = Claim(entry=answer.entry, held=False)
        if self._claims is not None:
            self._claiming.add(answer)
            try:
                claim = await self._claims.acquire(answer.entry, on_wait=waits)
            finally:
                self._claiming.remove(answer)
        if claim.entry.state == "finished":
            answer.repeated = True
            self._count("replayed")
        self._adopt(answer, claim.entry)
        return claim

    async def _produce(self, answer: KeptAnswer, claim: Claim, calls: Sequence[Call]) -> None:
        """Generates, then tells readers and store how it ended."""
        self._count("generated" if claim.entry.tries == 1 else "generated_again")
        keeper: asyncio.Task[None] | None = None
        if self._claims is not None:
            keeper = asyncio.create_task(self._claims.keep(claim))
        try:
            state, error = await self._outcome(answer, calls)
            if answer.state == "running":
                self._retire(answer, state, error)
        finally:
            if keeper is not None:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
        if self._claims is not None:
            await self._claims.settle(claim, state, answer.deltas if state == "finished" else ())

    async def _outcome(
        self, answer: KeptAnswer, calls: Sequence[Call]
    ) -> tuple[State, OctavoError | None]:
        """Generates; returns how that ended."""
        try:
            await self._generate(answer, calls)
        except OctavoError as error:
            return "free", error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if answer.state == "running" or task is None:
                raise
            task.uncancel()  # it has been heeded; what follows may be cancelled again
            return "free", None
        return "finished" if answer.kept else "too_large", None

    async def _generate(self, answer: KeptAnswer, calls: Sequence[Call]) -> None:
        turn = asyncio.Lock()
        tasks = [
            asyncio.create_task(self._move(answer, prompt, call, turn))
            for prompt, call in enumerate(calls)
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _move(self, answer: KeptAnswer, prompt: int, call: Call, turn: asyncio.Lock) -> None:
        if prompt:  # one in each turn of the loop: to hash a thousand prompts takes a second
            async with turn:
                await asyncio.sleep(0)
        generation = await self._dispatcher.open(_identified(call, answer.entry, prompt))
        num_unfinished = choices_of(call.request)
        try:
            async for delta in generation:
                answer.routes[prompt] = generation.route
                num_unfinished -= bool(delta.finish_reason)
                delta.ClearField("request_id")
                answer.put(prompt, delta.SerializeToString())
                if not answer.kept and answer in self._abandoned:
                    self._stop(answer)
        finally:
            await generation.aclose()
        if num_unfinished:
            raise OctavoError(ENGINE_FAILURE)

    def _seed(self, call: Call) -> int:
        sampling = call.request.sampling
        return sampling.seed if sampling.HasField("seed") else self._random.getrandbits(SEED_BITS)

    def _adopt(self, answer: KeptAnswer, entry: Entry) -> None:
        first = not answer.known.is_set()
        answer.adopt(entry)
        if first and answer.num_readers == 0:
            self._left(answer)

    def _read(self, answer: KeptAnswer) -> None:
        """A first reader comes."""
        if answer.state == "running":
            self._abandoned.pop(answer, None)
            self._cancel_timer(answer)

    def _left(self, answer: KeptAnswer) -> None:
        """The last reader has left a running answer."""
        if not answer.known.is_set():  # whether there is anything to run is still to be seen
            return
        self._abandoned[answer] = None
        self._set_timer(answer)
        if not answer.kept:
            self._stop(answer)
        elif len(self._abandoned) > MAX_ABANDONED:
            self._stop(next(iter(self._abandoned)))

    def _stop(self, answer: KeptAnswer) -> None:
        """Ends a generation for which nobody waits; its key is free at once."""
        self._count("abandoned")
        self._retire(answer, "free")
        self._tasks[answer].cancel()

    def _retire(self, answer: KeptAnswer, state: State, error: OctavoError | None = None) -> None:
        """Moves a running answer to the ended ones."""
        self._drop(answer)
        answer.end(state, error)
        self._ended.add(answer)

    def _drop(self, answer: KeptAnswer) -> None:
        """Takes an answer from the running ones."""
        if self._running.get(answer.entry.key) is answer:
            del self._running[answer.entry.key]
        self._abandoned.pop(answer, None)
        self._cancel_timer(answer)

    def _set_timer(self, answer: KeptAnswer) -> None:
        self._cancel_timer(answer)
        loop = asyncio.get_running_loop()
        self._timers[answer] = loop.call_later(self._grace_s, self._stop, answer)

    def _cancel_timer(self, answer: KeptAnswer) -> None:
        if timer := self._timers.pop(answer, None):
            timer.cancel()

    def _count(self, outcome: str) -> None:
        self._metrics.keyed.labels(outcome).inc()


def _identified(call: Call, entry: Entry, prompt: int) -> Call:
    """Returns the call of a prompt with the identity of an answer."""
    request = engine_pb2.GenerateRequest()
    request.CopyFrom(call.request)
    request.sampling.seed = entry.identity.seeds[prompt]
    if prompt == 0:
        request.attempt = (entry.tries - 1) * ATTEMPTS_PER_TRY
    return replace(call, request=request, id="" if prompt else entry.identity.id)
