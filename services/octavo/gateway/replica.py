"""One engine as the gateway sees it: connects, listens, suspects, reconnects.

    state loop     stage, load and KV events; reopened after a gap, an end or another epoch
    session loop   card when ready, then the session; its end ends all attempts at once
    watch          closes both when the engine has said nothing for three seconds
    proof          where it is wanted: a token of each life before anybody is sent there

The engine may be taken for requests (`ready`) while its state says READY, its card is read, its
session is open, and it is proved and not about to leave. Knows no other engine and no request but
by its attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog
from google.protobuf.message import DecodeError

from octavo.gateway.attempts import Attempt, AttemptTable, Loss
from octavo.gateway.discovery import Endpoint
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.engine_session import EngineSession
from octavo.gateway.heartbeat import SUSPECT_AFTER_S, TICK_S, Silence
from octavo.gateway.link import EngineLink, Inbound, LinkLostError, UntrustedError
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.model_card import ModelLoader, read_card
from octavo.gateway.prefix_index import IndexGapError, PrefixIndex
from octavo.gateway.proof import Proof, probe_request
from octavo.gateway.queue_time import Queue
from octavo.gateway.routing import EngineView
from octavo.runtime.env import Env
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import OctavoError

log = structlog.get_logger(__name__)

FIRST_RETRY_S = 0.1
LAST_RETRY_S = 2.0

_SERVING = (engine_pb2.STAGE_READY, engine_pb2.STAGE_DRAINING)


class Replica:
    """One engine.

    Args:
        endpoint: where it is, and whose.
        link: the way to it; owned from here on.
        loader: shared by the replicas of a gateway.
        metrics: where dropped deltas are counted.
        env: chance for the pauses between tries, and ids.
        on_ready: called when it may have become ready, or is nothing to wait for any more.
        proves: whether each life of it has to make a token before it is ready.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        link: EngineLink,
        *,
        loader: ModelLoader,
        metrics: GatewayMetrics,
        env: Env,
        on_ready: Callable[[], None] = lambda: None,
        proves: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.name = endpoint.name
        """In records and metrics."""
        self.stage: engine_pb2.Stage.ValueType = engine_pb2.STAGE_UNSPECIFIED
        """Unspecified while the engine cannot be reached."""
        self.detail = ""
        self.eta_ms = 0
        self.epoch = 0
        self.load = engine_pb2.Load()
        self.model: ServedModel | None = None
        """What it served when last heard of; kept while it is away."""
        self.suspected = False
        self.leaving = False
        """Whether it is about to go and gets no new attempts."""
        self.index = PrefixIndex()
        self.table = AttemptTable(
            self.index, on_outgoing=self._notify, on_drop=metrics.dropped_delta
        )
        self._link = link
        self._loader = loader
        self._env = env
        self._on_ready = on_ready
        self._random = env.rng(f"reconnect:{self.name}")
        self._serving = asyncio.Event()
        self._state: Inbound | None = None
        self._session: EngineSession | None = None
        self._silence, self._step = Silence(0.0), 0
        self.heard_in_session = False
        """Whether anything was heard in the present session, or the last one."""
        self._missed = False
        """Whether its absence was logged."""
        self.distrust = ""
        """Which certificate keeps it away; empty when none does."""
        self._unusable = ""
        self._proof: Proof | None = None
        if proves:
            self._proof = Proof(
                self.name, submit=self._submit_probe, cancel=self.cancel, on_done=self._look
            )

    @property
    def incarnation(self) -> tuple[str, int]:
        """Its name and epoch: another process at the same address is another engine."""
        return self.name, self.epoch

    @property
    def numerics_id(self) -> str:
        """What decides the bits of its logits; empty until its card is read."""
        return self.model.card.numerics_id if self.model is not None else ""

    @property
    def ready(self) -> bool:
        """Whether it may be given new attempts."""
        return (
            self.stage == engine_pb2.STAGE_READY
            and self._session is not None
            and self.heard_in_session
            and self.model is not None
            and not (self.suspected or self.leaving)
            and (self._proof is None or self._proof.done)
        )

    @property
    def problem(self) -> str:
        """Why it is not ready although it is there, if that is known."""
        proof = self._proof.problem if self._proof is not None else ""
        return self.distrust or self._unusable or proof

    def leave(self, leaving: bool) -> None:
        """Notes that it is about to go, or that it stays after all; attempts go on."""
        if leaving != self.leaving:
            log.info("engine_leaving" if leaving else "engine_stays", engine=self.name)
        self.leaving = leaving
        if leaving and self._proof is not None:
            self._proof.forbid()
        self._look()

    def view(self, hashes: Sequence[BlockHash], *, reads_cache: bool) -> EngineView:
        """Returns what the router needs to price it."""
        load = self.load
        return EngineView(
            name=self.name,
            hit_blocks=self.index.hit_blocks(hashes) if reads_cache else 0,
            queued_tokens=load.queued_prefill_tokens + self.table.unreported_tokens,
            running=max(load.running + load.waiting, self.table.choices),
            in_flight=self.table.in_flight,
            prefill_s_per_token=load.prefill_us_per_token / 1e6,
            decode_s_per_step=load.decode_us_per_step / 1e6,
        )

    def queue(self) -> Queue:
        """Returns what a new request finds there; asked only of those that are ready."""
        assert self.model is not None, "it is ready"
        load, card = self.load, self.model.card
        told = load.HasField("waiting_tokens")  # an older engine does not: all may be waiting
        waiting_tokens = load.waiting_tokens if told else load.queued_prefill_tokens
        return Queue(
            places=card.max_num_seqs,
            running=load.running,
            waiting=load.waiting + self.table.num_unreported,
            queued_tokens=load.queued_prefill_tokens + self.table.unreported_tokens,
            waiting_tokens=waiting_tokens + self.table.unreported_tokens,
            num_blocks=max(0, card.num_blocks - card.pin_blocks),
            free_blocks=load.free_blocks + load.cached_free_blocks,
            block_tokens=card.block_tokens,
            prefill_s_per_token=load.prefill_us_per_token / 1e6,
            decode_s_per_step=load.decode_us_per_step / 1e6,
        )

    def submit(
        self,
        request: engine_pb2.GenerateRequest,
        *,
        hashes: Sequence[BlockHash],
        prefill_tokens: int,
    ) -> Attempt:
        """Counts the attempt at once and sends it with the others of this turn of the loop."""
        attempt = Attempt(request, hashes=hashes, prefill_tokens=prefill_tokens)
        self.table.open(request, attempt)
        return attempt

    def cancel(self, attempt: Attempt, error: OctavoError | None = None) -> None:
        """Ends an attempt here at once, and on the engine within its next step."""
        self.table.cancel(attempt, error)

    async def run(self) -> None:
        """Keeps the engine connected until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._state_loop())
                tasks.create_task(self._session_loop())
                tasks.create_task(self._watch())
                if self._proof is not None:
                    tasks.create_task(self._proof.run())
        finally:
            self.table.lose_all("the gateway is shutting down")
            await self._link.close()

    def _look(self) -> None:
        """Notes what has changed."""
        talks = self._session is not None and self.heard_in_session
        if self._proof is not None and talks and not self.leaving:
            self._proof.allow()
        if self.ready:
            self._on_ready()

    def _submit_probe(self) -> Attempt:
        assert self.model is not None, "there is a session"
        request = probe_request(self.model.card, id=self._env.new_id())
        return self.submit(request, hashes=[], prefill_tokens=1)

    def _notify(self) -> None:
        if self._session is not None:
            self._session.notify()

    async def _pause(self, failures: int) -> None:
        span = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 10))
        await asyncio.sleep(span * self._random.uniform(0.5, 1.0))

    async def _state_loop(self) -> None:
        failures = 0
        while True:
            stream = self._state = self._link.open_state()
            self.index.restart()
            try:
                while (data := await stream.recv()) is not None:
                    self._take_state(data)
                    failures = 0
                raise LinkLostError("the engine closed the state stream")
            except IndexGapError as gap:
                log.warning("events_missed", engine=self.name, reason=str(gap))
            except LinkLostError as lost:
                self._unreachable(lost)
            finally:
                stream.close()
            await self._pause(failures)
            failures += 1

    def _take_state(self, data: bytes) -> None:
        try:
            update = engine_pb2.StateUpdate.FromString(data)
        except DecodeError as error:
            raise LinkLostError("a state message cannot be read") from error
        self._missed, self.distrust = False, ""
        self.index.apply(update)
        if update.epoch != self.epoch:
            self._new_epoch(update.epoch)
        if update.stage != self.stage:
            log.info(
                "engine_stage",
                engine=self.name,
                stage=stage_word(update.stage),
                detail=update.detail,
                error=update.error.message,
            )
        self.stage = update.stage
        self.detail = update.detail
        self.eta_ms = update.eta_ms
        if update.HasField("load"):
            self.load = update.load
            self.table.load_reported()
        if self.stage in _SERVING:
            self._serving.set()
        else:
            self._serving.clear()
        self._look()

    def _new_epoch(self, epoch: int) -> None:
        if self.epoch:
            log.info("engine_restarted", engine=self.name)
        self.epoch = epoch
        self.suspected = False
        if self._proof is not None:
            self._proof.renew()
        self.load = engine_pb2.Load()
        self._close_session("the engine was restarted")

    def _unreachable(self, lost: LinkLostError) -> None:
        before, self.distrust = self.distrust, ""
        if isinstance(lost, UntrustedError):
            self.distrust = lost.reason
            if before != self.distrust:
                detail = lost.detail
                log.error("engine_untrusted", engine=self.name, reason=lost.reason, detail=detail)
        elif self.stage != engine_pb2.STAGE_UNSPECIFIED:
            log.warning("engine_unreachable", engine=self.name, reason=lost.reason)
        elif not self._missed:
            log.info("engine_awaited", engine=self.name, reason=lost.reason)
        self._missed = True
        self.stage = engine_pb2.STAGE_UNSPECIFIED
        self.detail, self.eta_ms = "", 0
        self._serving.clear()
        if self.distrust != before:
            self._on_ready()

    async def _session_loop(self) -> None:
        failures = 0
        while True:
            await self._serving.wait()
            opened = asyncio.get_running_loop().time()
            try:
                await self._serve()
            except LinkLostError as lost:
                self._close_session(lost.reason)
            except OctavoError as error:
                self._unusable = error.message
                log.error("engine_unusable", engine=self.name, error=str(error))
            if asyncio.get_running_loop().time() - opened > LAST_RETRY_S:
                failures = 0
            await self._pause(failures)
            failures += 1

    async def _serve(self) -> None:
        if self.model is None or self.model.card.epoch != self.epoch:
            self.model = await self._read_model()
        self._silence = Silence(asyncio.get_running_loop().time())
        self.heard_in_session = False
        self._session = EngineSession(
            self._link.open_session(), self.table, epoch=self.epoch, on_message=self._heard
        )
        self._unusable = ""
        log.info("engine_connected", engine=self.name, model=self.model.name)
        await self._session.run()

    async def _read_model(self) -> ServedModel:
        stream = self._link.fetch_card()
        try:
            card, files = await read_card(stream)
        finally:
            stream.close()
        if card.epoch != self.epoch:
            raise LinkLostError("the card is of another engine process")
        return replace(self._loader.build(card, files), service=self.endpoint.service)

    def _heard(self, update: engine_pb2.SessionUpdate) -> None:
        """Counts as a sign of life unless work waits and no step was made: that is stuck, too.

        The first message only says who answers: it may come from a process that does not step, so
        it clears no suspicion.
        """
        first, self.heard_in_session = not self.heard_in_session, True
        if first or update.step != self._step or not update.oldest_runnable_ms:
            self._silence.heard()
            news = first or self.suspected
            self.suspected = self.suspected and first
            if news:
                self._look()
        self._step = update.step

    def _close_session(self, reason: str, loss: Loss = Loss.BROKEN) -> None:
        """Ends the session, if there is one, and every attempt at once."""
        session, self._session = self._session, None
        if self._proof is not None:
            self._proof.forbid()
        if not self.heard_in_session:
            loss = Loss.SILENT  # nobody was there, so nobody died of it
        if session is not None:
            session.close()
            log.warning(
                "session_lost", engine=self.name, reason=reason, attempts=self.table.in_flight
            )
        self.table.lose_all(reason, loss)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            silent = self._silence.tick(asyncio.get_running_loop().time())
            if self._session is not None and silent:
                self.suspected = True
                self._close_session(f"silent for {SUSPECT_AFTER_S:g} s", Loss.SILENT)
                if self._state is not None:
                    self._state.close()


def stage_word(stage: engine_pb2.Stage.ValueType) -> str:
    """Returns a stage as one lower-case word; an unknown one of a newer engine as a number."""
    if stage == engine_pb2.STAGE_UNSPECIFIED:
        return "unreachable"
    if stage in engine_pb2.Stage.values():
        return engine_pb2.Stage.Name(stage).removeprefix("STAGE_").lower()
    return str(stage)
