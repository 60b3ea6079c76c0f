"""The open attempts on one engine: one table, and everything that is counted is read from it.

    AttemptTable   open, cancel, apply what the engine says, lose all; what has to be sent
      └ Attempt    one try of a request: a bounded mailbox with one reader

An attempt is in the table from the moment it is chosen until it ends in any way, so in-flight
counts cannot leak. Does no I/O; asyncio only wakes the reader.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Sequence

from octavo.gateway.prefix_index import PrefixIndex
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import INTERNAL, SLOW_CLIENT, OctavoError
from octavo.v1.validation import choices_of

MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Deltas that wait for one reader: the text of 8,000 tokens with 20 logprobs each is about 3 MB."""

MAX_MESSAGE_BYTES = 3 * 1024 * 1024
"""Requests sent in one message; gRPC's own limit is 4 MB and would cost the whole session."""

Key = tuple[str, int]
"""(request id, attempt number)."""


class Loss(enum.Enum):
    """How an attempt was lost."""

    BROKEN = "engine_lost"
    """The session broke: the process has most likely ended."""
    SILENT = "engine_silent"
    """It says nothing any more: stuck, stopped, or cut off."""
    GAP = "tokens_lost"
    """Only this attempt: it was never sent, or a part of its answer never arrived."""


class EngineLostError(Exception):
    """The engine, or the way to it, was lost while the attempt was open."""

    def __init__(self, reason: str, loss: Loss = Loss.BROKEN) -> None:
        self.reason = reason
        self.loss = loss
        super().__init__(reason)


class Attempt:
    """One try of a request on one engine; made and ended by its table."""

    def __init__(
        self,
        request: engine_pb2.GenerateRequest,
        *,
        hashes: Sequence[BlockHash],
        prefill_tokens: int,
    ) -> None:
        self.key: Key = (request.request_id, request.attempt)
        self.hashes = hashes
        self.prefill_tokens = prefill_tokens
        """Prompt tokens that the engine is expected to compute."""
        self.accepted = False
        self.ended = False
        """True when nothing more will be put in; what waits can still be read."""
        self._lengths = [0] * choices_of(request)
        for resume in request.resumes:
            self._lengths[resume.choice] = len(resume.output_ids)
        resumed = {resume.choice for resume in request.resumes}
        self._unfinished = resumed or set(range(len(self._lengths)))
        self.num_choices = request.beam.width or len(self._unfinished)
        """Choices, or beams, that it computes."""
        self._inbox: deque[engine_pb2.Delta] = deque()
        self._waiting_bytes = 0
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    async def answered(self) -> None:
        """Waits until the engine has taken the attempt; raises its refusal or EngineLostError."""
        while not self.accepted:
            if self._error is not None:
                raise self._error
            if self.ended:
                raise EngineLostError("cancelled")
            await self._wait()

    async def next(self) -> engine_pb2.Delta | None:
        """Returns the next delta, None after the last; raises EngineLostError or OctavoError."""
        while not self._inbox:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            await self._wait()
        delta = self._inbox.popleft()
        self._waiting_bytes -= delta.ByteSize()
        return delta

    def fits(self, delta: engine_pb2.Delta) -> str:
        """Returns why the delta must be dropped; empty when it continues its choice."""
        if delta.choice >= len(self._lengths):
            return "choice"
        if delta.choice not in self._unfinished:
            return "finished"
        return "" if delta.position == self._lengths[delta.choice] else "position"

    def put(self, delta: engine_pb2.Delta) -> None:
        """Takes a fitting delta; raises SLOW_CLIENT when too much waits for the reader."""
        waiting = self._waiting_bytes + delta.ByteSize()
        # A single delta may be larger than the bound (prompt logprobs): it is always taken.
        if self._inbox and waiting > MAX_WAITING_BYTES:
            raise OctavoError(SLOW_CLIENT, waiting=waiting, limit=MAX_WAITING_BYTES)
        self.accepted = True
        self._waiting_bytes = waiting
        self._inbox.append(delta)
        self._lengths[delta.choice] += len(delta.token_ids)
        if delta.finish_reason:
            self._unfinished.discard(delta.choice)
        self.wake()

    @property
    def complete(self) -> bool:
        """Whether every choice has its finish reason."""
        return not self._unfinished

    def missed(self, delta: engine_pb2.Delta) -> bool:
        """Whether tokens before this delta never arrived."""
        return delta.choice in self._unfinished and delta.position > self._lengths[delta.choice]

    def end(self, error: Exception | None = None) -> None:
        """Marks that nothing more comes, and why."""
        self.ended = True
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Lets the reader look again."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def _wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None


class AttemptTable:
    """The open attempts on one engine and what has to be sent for them.

    Args:
        index: gets the promises of open attempts and loses them with their end.
        on_outgoing: called when there is something to send.
        on_drop: called with the reason for each delta that is not delivered.
    """

    def __init__(
        self,
        index: PrefixIndex,
        *,
        on_outgoing: Callable[[], None],
        on_drop: Callable[[str], None],
    ) -> None:
        self._index = index
        self._on_outgoing = on_outgoing
        self._on_drop = on_drop
        self._open: dict[Key, Attempt] = {}
        self._num_choices = 0
        self._unreported: dict[Key, int] = {}
        self._to_generate: dict[Key, engine_pb2.GenerateRequest] = {}
        self._to_cancel: list[Key] = []
        self._empty: asyncio.Event | None = None
        """Set with the end of the last attempt, if anybody waits for that."""

    @property
    def in_flight(self) -> int:
        """Open attempts."""
        return len(self._open)

    @property
    def choices(self) -> int:
        """Choices of the open attempts."""
        return self._num_choices

    @property
    def num_unreported(self) -> int:
        """Attempts that the engine's load report cannot contain yet."""
        return len(self._unreported)

    @property
    def unreported_tokens(self) -> int:
        """Prompt tokens sent that the engine's load report cannot contain yet."""
        return sum(self._unreported.values())

    async def emptied(self) -> None:
        """Waits until no attempt is open."""
        while self._open:
            self._empty = asyncio.Event()
            await self._empty.wait()

    def open(self, request: engine_pb2.GenerateRequest, attempt: Attempt) -> None:
        """Registers an attempt and queues its request for sending."""
        assert attempt.key not in self._open, "an attempt number is used once"
        self._open[attempt.key] = attempt
        self._num_choices += attempt.num_choices
        self._unreported[attempt.key] = attempt.prefill_tokens
        self._index.promise(attempt.hashes)
        self._to_generate[attempt.key] = request
        self._on_outgoing()

    def cancel(self, attempt: Attempt, error: OctavoError | None = None) -> None:
        """Ends an attempt here at once and on the engine with the next message. Idempotent.

        Args:
            attempt: one of this table.
            error: what its reader is told; None when nobody reads any more.
        """
        sent = attempt.key not in self._to_generate
        if self._end(attempt.key, error) and sent:
            self._to_cancel.append(attempt.key)
            self._on_outgoing()

    def lose_all(self, reason: str, loss: Loss = Loss.BROKEN) -> None:
        """Ends every attempt with EngineLostError."""
        self._to_cancel.clear()
        for key in list(self._open):
            sent = key not in self._to_generate
            self._end(key, EngineLostError(reason, loss if sent else Loss.GAP))

    def load_reported(self) -> None:
        """Notes a new load report: it contains what the engine has accepted."""
        for key in [k for k in self._unreported if self._open[k].accepted]:
            del self._unreported[key]

    def take_outgoing(self) -> engine_pb2.SessionRequest | None:
        """Returns the next message to send, with as many requests as fit; None: nothing to say."""
        if not self._to_generate and not self._to_cancel:
            return None
        message = engine_pb2.SessionRequest()
        for request_id, attempt in self._to_cancel:
            message.cancel.add(request_id=request_id, attempt=attempt)
        self._to_cancel.clear()
        room = MAX_MESSAGE_BYTES - message.ByteSize()
        for key in list(self._to_generate):
            room -= self._to_generate[key].ByteSize()
            if room < 0 and message.generate:
                break
            message.generate.append(self._to_generate.pop(key))
        return message

    def apply(self, update: engine_pb2.SessionUpdate) -> None:
        """Delivers what one message says."""
        for accepted in update.accepted:
            if attempt := self._open.get(_key(accepted.attempt_ref)):
                attempt.accepted = True
                attempt.wake()
        for refused in update.refused:
            self._end(_key(refused.attempt_ref), OctavoError.from_proto(refused.error))
        for delta in update.deltas:
            self._deliver(delta)

    def check_integrity(self) -> None:
        """Asserts that counters, promises and outgoing requests belong to open attempts."""
        assert set(self._unreported) <= set(self._open)
        assert set(self._to_generate) <= set(self._open)
        assert self._num_choices == sum(a.num_choices for a in self._open.values())
        promised = {h for a in self._open.values() for h in a.hashes}
        assert self._index.num_promised() == len(promised)

    def _deliver(self, delta: engine_pb2.Delta) -> None:
        key = (delta.request_id, delta.attempt)
        attempt = self._open.get(key)
        if attempt is None:
            # Usual after a cancel: the engine had not heard of it yet.
            self._on_drop("attempt")
            return
        if reason := attempt.fits(delta):
            self._on_drop(reason)
            if attempt.missed(delta):
                self._abandon(
                    attempt, EngineLostError("tokens of the stream are missing", Loss.GAP)
                )
            return
        try:
            attempt.put(delta)
        except OctavoError as error:
            self._on_drop("slow")
            self._abandon(attempt, error)
            return
        self._unreported.pop(key, None)
        if delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
            self._abandon(attempt, _error_of(delta))
        elif attempt.complete:
            self._end(key, None)

    def _abandon(self, attempt: Attempt, error: Exception) -> None:
        finished = attempt.complete
        self._end(attempt.key, error)
        if not finished:
            self._to_cancel.append(attempt.key)
            self._on_outgoing()

    def _end(self, key: Key, error: Exception | None) -> bool:
        """The only way out of the table; False when it has been taken already."""
        attempt = self._open.pop(key, None)
        if attempt is None:
            return False
        self._num_choices -= attempt.num_choices
        self._unreported.pop(key, None)
        self._to_generate.pop(key, None)
        self._index.release(attempt.hashes)
        attempt.end(error)
        if self._empty is not None and not self._open:
            self._empty.set()
        return True


def _key(ref: engine_pb2.AttemptRef) -> Key:
    return ref.request_id, ref.attempt


def _error_of(delta: engine_pb2.Delta) -> OctavoError:
    if delta.HasField("error"):
        return OctavoError.from_proto(delta.error)
    return OctavoError(INTERNAL, id=delta.request_id)
