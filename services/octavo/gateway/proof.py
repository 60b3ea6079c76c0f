"""Whether an engine has shown, in its present life, that it works: it has to make one token.

Nobody is sent to an engine before. A try that fails is made again while the engine can be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from octavo.gateway.attempts import Attempt, EngineLostError
from octavo.v1 import engine_pb2
from octavo.v1.errors import QUEUE_FULL, OctavoError
from octavo.v1.features import FEATURE_PRIORITY
from octavo.v1.limits import MAX_PRIORITY

log = structlog.get_logger(__name__)

PROBE_S: Final = 60.0
"""An engine that other gateways keep busy lets a new request in when one of theirs ends."""

RETRY_S: Final = 1.0


class Proof:
    """The proof of one engine.

    Args:
        engine: its name, for the log.
        submit: sends the request.
        cancel: ends it.
        on_done: called when the engine has proved itself.
    """

    def __init__(
        self,
        engine: str,
        *,
        submit: Callable[[], Attempt],
        cancel: Callable[[Attempt], None],
        on_done: Callable[[], None],
    ) -> None:
        self.done = False
        self.problem = ""
        """Why the last try failed."""
        self._engine = engine
        self._submit = submit
        self._cancel = cancel
        self._on_done = on_done
        self._possible = asyncio.Event()
        self._trying: Attempt | None = None

    def renew(self) -> None:
        """Wants another one: the engine has begun a new life."""
        self.forbid()
        self.done, self.problem = False, ""

    def allow(self) -> None:
        """Says that the engine can be asked."""
        if not self.done:
            self._possible.set()

    def forbid(self) -> None:
        """Says that it cannot, and gives the present try up."""
        self._possible.clear()
        if self._trying is not None:
            self._cancel(self._trying)
            self._trying = None

    async def run(self) -> None:
        """Tries whenever it is possible and needed, until it is cancelled."""
        while True:
            await self._possible.wait()
            attempt = self._trying = self._submit()
            problem = await outcome_of(attempt)
            if self._trying is not attempt:  # it was given up meanwhile
                continue
            self._cancel(attempt)
            self._trying = None
            if problem:
                log.warning("engine_unproved", engine=self._engine, reason=problem)
                self.problem = f"the probe failed: {problem}"
                await asyncio.sleep(RETRY_S)
            else:
                log.info("engine_proved", engine=self._engine)
                self._possible.clear()
                self.done, self.problem = True, ""
                self._on_done()


def probe_request(card: engine_pb2.ModelCard, *, id: str) -> engine_pb2.GenerateRequest:
    """Returns a request that every model can answer and of which nothing is cached."""
    return engine_pb2.GenerateRequest(
        request_id=id,
        token_ids=engine_pb2.TokenIds(ids=[card.bos_token_id]),
        max_tokens=1,
        n=1,
        stop=engine_pb2.Stop(ignore_eos=True),
        sampling=engine_pb2.Sampling(seed=0, temperature=0.0),
        priority=-MAX_PRIORITY if card.features & FEATURE_PRIORITY else 0,
    )


async def outcome_of(attempt: Attempt) -> str:
    """Waits for the token; returns why there is none, empty when the engine has proved itself."""
    try:
        async with asyncio.timeout(PROBE_S):
            await attempt.answered()
            while (delta := await attempt.next()) is not None:
                if delta.token_ids:
                    return ""
    except TimeoutError:
        return f"no token within {PROBE_S:g} s"
    except EngineLostError as lost:
        return lost.reason
    except OctavoError as refusal:
        # Whoever has too much to do works for others.
        return "" if refusal.kind is QUEUE_FULL else refusal.message
    return "no token"
