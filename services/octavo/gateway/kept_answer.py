"""One keyed answer while it is generated and afterwards: deltas kept from the start, any readers.

    KeptAnswer.put ──► kept deltas ──► Reader (from the start, then live)
              └──► inbox of every reader that is there
    Joined       the readers of one client, of each prompt one

Whoever comes gets everything. An answer that grows beyond its bound, or is dropped because memory
runs out, is not kept any longer: its readers go on, nobody else can join. Knows no store and no
dispatcher.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from octavo.gateway.idempotency import PARAM, Entry, Identity, State
from octavo.gateway.routing import Route
from octavo.v1 import engine_pb2
from octavo.v1.errors import ANSWER_NOT_KEPT, OctavoError

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
"""One answer: about 50,000 tokens of plain text, or 8,000 with 20 log-probabilities each."""

_OVERHEAD_BYTES: Final = 64
"""What Python needs for each kept delta besides its bytes."""


class Reader:
    """One reader of one prompt: an async iterator of deltas; must be closed."""

    def __init__(self, answer: KeptAnswer, prompt: int, kept: Sequence[bytes]) -> None:
        self._answer = answer
        self._prompt = prompt
        self._inbox = deque(kept)
        self._news = asyncio.Event()

    @property
    def route(self) -> Route | None:
        """Why the generation runs where it runs; None before that is known, or anywhere else."""
        return self._answer.routes[self._prompt]

    def __aiter__(self) -> Reader:
        """The reader is its own iterator."""
        return self

    async def __anext__(self) -> engine_pb2.Delta:
        """Returns the next delta; raises the error with which the generation ended."""
        while not self._inbox:
            if self._answer.state != "running":
                if self._answer.error is not None:
                    raise self._answer.error
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return engine_pb2.Delta.FromString(self._inbox.popleft())

    def extend(self, deltas: Sequence[bytes]) -> None:
        """Takes deltas."""
        self._inbox.extend(deltas)
        self.wake()

    def wake(self) -> None:
        """Lets the reader look again."""
        self._news.set()

    def fail(self, error: OctavoError) -> None:
        """Nothing to do: what ails one client is not the generation's business."""

    async def aclose(self) -> None:
        """Stops reading; the generation goes on."""
        self.leave()

    def leave(self) -> None:
        """Stops reading. Idempotent."""
        self._answer.leave(self._prompt, self)


class Joined:
    """One client at an answer: it reads all prompts from this moment on. Must be closed.

    Args:
        answer: what it reads.
        found: the answer was there before the client came.

    Raises:
        OctavoError: ANSWER_NOT_KEPT.
    """

    def __init__(self, answer: KeptAnswer, *, found: bool) -> None:
        self._answer = answer
        self._found = found
        # All now: when the client gets round to the last prompt, its beginning may be gone.
        self._readers = [answer.open(prompt) for prompt in range(len(answer.routes))]

    @property
    def identity(self) -> Identity:
        """Under which the answer is given."""
        return self._answer.entry.identity

    @property
    def replayed(self) -> bool:
        """Whether the answer is that of an earlier request."""
        return self._found or self._answer.repeated

    async def known(self) -> None:
        """Waits until the identity is settled; raises OctavoError when the key is refused."""
        await self._answer.known.wait()
        if self._answer.refusal is not None:
            raise self._answer.refusal

    async def open(self, prompt: int) -> Reader:
        """Returns the reader of a prompt."""
        return self._readers[prompt]

    def close(self) -> None:
        """Stops reading; the generation goes on. Idempotent."""
        for reader in self._readers:
            reader.leave()


class KeptAnswer:
    """The answer of one key.

    Args:
        entry: what the request that comes first wants to claim.
        on_empty: called when the last reader has left an answer that is still generated.
        on_read: called when the first reader comes.
    """

    def __init__(
        self,
        entry: Entry,
        *,
        on_empty: Callable[[KeptAnswer], None],
        on_read: Callable[[KeptAnswer], None],
    ) -> None:
        self.entry = entry
        self.state: State = "running"
        """`free` when it failed or nobody waited any more."""
        self.error: OctavoError | None = None
        self.known = asyncio.Event()
        """The identity is settled, or the key refused."""
        self.refusal: OctavoError | None = None
        """Why the key cannot be used, or could not be looked up."""
        self.repeated = False
        """Another gateway had begun it."""
        self.num_bytes = 0
        self.kept = True
        """All that has come is here, so that others can join."""
        self.num_readers = 0
        """Of all prompts."""
        num_prompts = len(entry.identity.seeds)
        self.routes: list[Route | None] = [None] * num_prompts
        self._kept: list[list[bytes]] = [[] for _ in range(num_prompts)]
        self._readers: list[list[Reader]] = [[] for _ in range(num_prompts)]
        self._on_empty = on_empty
        self._on_read = on_read

    @property
    def deltas(self) -> tuple[tuple[bytes, ...], ...]:
        """What is kept of each prompt."""
        return tuple(map(tuple, self._kept))

    def open(self, prompt: int) -> Reader:
        """Returns a reader that begins at the beginning; raises ANSWER_NOT_KEPT if that is gone."""
        if not self.kept:
            raise OctavoError(ANSWER_NOT_KEPT, param=PARAM)
        if self.num_readers == 0:
            self._on_read(self)
        self.num_readers += 1
        reader = Reader(self, prompt, self._kept[prompt])
        self._readers[prompt].append(reader)
        return reader

    def leave(self, prompt: int, reader: Reader) -> None:
        """Forgets a reader. Idempotent."""
        if reader in self._readers[prompt]:
            self._readers[prompt].remove(reader)
            self.num_readers -= 1
            if self.num_readers == 0 and self.state == "running":
                self._on_empty(self)

    def adopt(self, entry: Entry) -> None:
        """Notes under which identity the answer is given."""
        self.entry = entry
        self.known.set()

    def put(self, prompt: int, data: bytes) -> None:
        """Takes the next delta of a prompt."""
        if self.kept:
            self._kept[prompt].append(data)
            self.num_bytes += len(data) + _OVERHEAD_BYTES
            if self.num_bytes > MAX_ANSWER_BYTES:
                self.drop()
        for reader in self._readers[prompt]:
            reader.extend((data,))

    def load(self, deltas: Sequence[Sequence[bytes]]) -> None:
        """Takes a whole answer."""
        for prompt, of_prompt in enumerate(deltas):
            self._kept[prompt].extend(of_prompt)
            self.num_bytes += sum(map(len, of_prompt)) + _OVERHEAD_BYTES * len(of_prompt)
            for reader in self._readers[prompt]:
                reader.extend(of_prompt)

    def refuse(self, error: OctavoError) -> None:
        """Ends an answer that was never begun."""
        self.refusal = error
        self.end("free", error)

    def end(self, state: State, error: OctavoError | None = None) -> None:
        """Marks that nothing more comes."""
        self.state, self.error = state, error
        if state != "finished":
            self.drop()
        self.known.set()
        for readers in self._readers:
            for reader in readers:
                reader.wake()

    def drop(self) -> None:
        """Keeps it no longer: its readers go on, nobody else can join."""
        self.kept = False
        self.num_bytes = 0
        for kept in self._kept:
            kept.clear()
