"""What happened in a run: what clients got, what engines received and said, what was violated.

Validators read this and nothing else of the clients' side, so that runs with real processes can be
judged by the same ones. Every entry also goes into the trace, whose hash two equal runs share.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from tests.sim.requests import Spec

from octavo.v1 import engine_pb2

ENDS = ("complete", "incomplete", "broken", "left", "refused")
"""How a try ends: whole body; closed without its end; gateway died; client left; nobody there."""


@dataclass(slots=True, kw_only=True, eq=False)
class Try:
    """One HTTP request of a client."""

    spec: Spec
    label: str
    gateway: str
    began: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    end: str = ""
    ended: float = 0.0

    @property
    def id(self) -> str:
        """The gateway's id of the request; empty when no header came."""
        return self.headers.get("x-request-id", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An attempt that a gateway sent."""

    at: float
    gateway: str
    life: int
    """Which of the gateway's processes it was."""
    engine: str
    epoch: int
    """As the gateway knows it."""
    attempt: int
    deaths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """An attempt that reached an engine."""

    at: float
    engine: str
    epoch: int
    proto: engine_pb2.GenerateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of an engine process, whatever the cause."""

    at: float
    engine: str
    epoch: int
    cause: str
    running: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken invariant."""

    name: str
    detail: str
    at: float

    def __str__(self) -> str:
        return f"{self.name} at {self.at:.3f}: {self.detail}"


class History:
    """The record of one run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.tries: list[Try] = []
        self.received: dict[str, list[Received]] = {}
        self.delivered: dict[tuple[str, str, int], dict[int, int]] = {}
        """(session, id, attempt): ids said so far by choice."""
        self.refused: set[tuple[str, str, int]] = set()
        self.sent: dict[str, list[Sent]] = {}
        self.handovers: Counter[str] = Counter()
        """Answers that a draining engine gave back, by request."""
        self.ids_of: dict[tuple[int, ...], list[str]] = {}
        """By prompt, which says whose it is: all ids under which it was sent."""
        self.broken: set[str] = set()
        """Requests that were alone in a step that was made to fail."""
        self.quarantined: set[str] = set()
        """Requests whose like were taken for poison, though with reason."""
        self.deaths: list[Death] = []
        self.faults: list[tuple[float, str, str]] = []
        self.counts: Counter[str] = Counter()
        """Things worth reaching, and how often they were."""
        self.violations: list[Violation] = []
        self.violated = asyncio.Event()
        self.lines: list[str] | None = None
        """Trace lines, if anybody wants them."""
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)

    def trace(self, *fields: object) -> None:
        """Adds a line to the trace."""
        line = f"{self._clock():.6f} " + " ".join(map(str, fields))
        self._hash.update(line.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """Hash of the trace so far."""
        return self._hash.hexdigest()

    def count(self, name: str) -> None:
        """Notes that something was reached."""
        self.counts[name] += 1

    def violate(self, name: str, detail: str) -> None:
        """Notes a broken invariant, which ends the run."""
        self.violations.append(Violation(name, detail, self._clock()))
        self.trace("violation", name, detail)
        self.violated.set()

    def check(self, holds: bool, name: str, detail: str) -> None:
        """Notes a broken invariant unless it holds."""
        if not holds:
            self.violate(name, detail)

    async def until_violated(
        self, story: Coroutine[None, None, object], *beside: Coroutine[None, None, object]
    ) -> None:
        """Runs a story to its end or to the first violation, and what goes on beside it as long.

        Raises:
            Exception: whatever one of them raised.
        """
        works = (story, self.violated.wait(), *beside)
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    def fault(self, kind: str, target: str) -> None:
        """Notes a fault that was done."""
        self.faults.append((self._clock(), kind, target))
        self.count(f"fault.{kind}")
        self.trace("fault", kind, target)

    def send(
        self, proto: engine_pb2.GenerateRequest, *, sent_by: tuple[str, int], to: tuple[str, int]
    ) -> None:
        """Notes what a gateway (and its life) sends to an engine (and its epoch)."""
        sent = self.sent.setdefault(proto.request_id, [])
        if not sent:
            self.ids_of.setdefault(tuple(proto.token_ids.ids), []).append(proto.request_id)
        sent.append(
            Sent(
                at=self._clock(),
                gateway=sent_by[0],
                life=sent_by[1],
                engine=to[0],
                epoch=to[1],
                attempt=proto.attempt,
                deaths=proto.deaths,
            )
        )

    def ids(self, attempt: Try) -> list[str]:
        """Returns the ids of what a try may have run as: with a key, those of all its kind."""
        if not attempt.spec.key:
            return [attempt.id]
        return self.ids_of.get(tuple(attempt.spec.prompt_ids()), [])

    def receive(self, engine: str, epoch: int, proto: engine_pb2.GenerateRequest) -> None:
        """Notes an attempt that reached an engine."""
        entry = Received(at=self._clock(), engine=engine, epoch=epoch, proto=proto)
        self.received.setdefault(proto.request_id, []).append(entry)
        self.trace("received", engine, epoch, proto.request_id, proto.attempt, proto.deaths)

    def die(self, engine: str, epoch: int, cause: str, running: tuple[str, ...]) -> None:
        """Notes the end of an engine process."""
        self.deaths.append(
            Death(at=self._clock(), engine=engine, epoch=epoch, cause=cause, running=running)
        )
        self.count(f"death.{cause}")
        self.trace("death", engine, epoch, cause)
