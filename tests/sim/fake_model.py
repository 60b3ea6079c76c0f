"""The model of the simulation, and the undisturbed answer of a request computed without an engine.

A token is a function of all ids so far, where the output begins, the seed (none if greedy) and the
penalties. Most tokens are one of few letters, so that stop strings match and begin to match; some
are parts of characters; one in a hundred ends the answer.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tokenizers
from tests.fakes import BLOCK, EOS, FakeRunner, byte_tokenizer_json
from tests.sim.requests import Spec

from octavo.engine.batch import Logprobs, Sampled, StepInput, StepOutput
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.request import Request, StopParams

DECODER = tokenizers.Tokenizer.from_str(byte_tokenizer_json().decode())
_LETTERS = b"aaabbcd \n"
_FOLLOWS = {0xF0: 0x9F, 0x9F: 0x98}
"""What an unfinished character of four bytes goes on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What the next token depends on besides the ids."""

    num_prompt: int
    seed: int
    penalties: tuple[float, float, float]
    min_tokens: int


def next_token(ids: Sequence[int], draw: Draw) -> tuple[int, float]:
    """Returns the next token and its log-probability."""
    salt = repr((draw.num_prompt, draw.seed, draw.penalties)).encode()
    digest = hashlib.blake2b(array("H", ids).tobytes(), key=salt[:64], digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    logprob = -((number >> 40) % 16) / 4
    last, low = ids[-1], (number >> 8) % 64
    if last in _FOLLOWS:
        return _FOLLOWS[last], logprob
    if last in (0xC3, 0x98):
        return 0x80 + low, logprob
    kind = number % 100
    if kind == 0 and len(ids) - draw.num_prompt + 1 > draw.min_tokens:
        return EOS, logprob
    if kind < 5:
        return 0xC3, logprob
    if kind < 7:
        return 0xF0, logprob
    if kind < 9:
        return 0x80 + low, logprob
    return _LETTERS[low % len(_LETTERS)], logprob


class SimRunner(FakeRunner):
    """`FakeRunner` on this model; a position that nobody wrote is reported, never retried."""

    def __init__(
        self,
        *,
        before: Callable[[StepInput], None],
        poison: Callable[[Request], bool],
        report: Callable[[str], None],
    ) -> None:
        super().__init__(before=before, poison=poison)
        self._report = report

    def run(self, step: StepInput) -> StepOutput:
        try:
            return super().run(step)
        except Exception as error:
            if isinstance(error, (AssertionError, LookupError, TypeError)):
                self._report(f"the runner read what nobody wrote: {error!r}")
            for row in step.rows:  # half-written, as after a real failure
                for i in range(row.start, row.start + len(row.token_ids)):
                    self.pool[row.block_table[i // BLOCK]][i % BLOCK] = None
            raise
        finally:
            self.steps.clear()

    def _sample(self, request: Request, ids: list[int]) -> Sampled:
        if self._poison(request):
            return Sampled(token_ids=(), finite=False)
        s = request.sampling
        token, logprob = next_token(
            ids,
            Draw(
                num_prompt=len(request.prompt_ids),
                seed=0 if s.is_greedy else s.seed,
                penalties=(s.repetition_penalty, s.presence_penalty, s.frequency_penalty),
                min_tokens=s.min_tokens,
            ),
        )
        if s.logprobs is None:
            return Sampled(token_ids=(token,))
        others = [(token + 1 + i) % 256 for i in range(s.logprobs)]
        entry = Logprobs(
            token_ids=(token, *others),
            logprobs=(logprob, *(logprob - 1 - i for i in range(s.logprobs))),
            ranks=tuple(range(1, len(others) + 2)),
        )
        return Sampled(token_ids=(token,), logprobs=(entry,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One choice, undisturbed."""

    ids: tuple[int, ...]
    text: str
    finish_reason: str
    logprobs: tuple[float, ...]


def undisturbed(spec: Spec, seed: int, *, max_model_len: int) -> list[Answer]:
    """Returns what a client must get, by choice."""
    return [_answer(spec, seed + i, max_model_len=max_model_len) for i in range(spec.n)]


def _answer(spec: Spec, seed: int, *, max_model_len: int) -> Answer:
    prompt = spec.prompt_ids()
    draw = Draw(
        num_prompt=len(prompt),
        seed=0 if spec.temperature == 0 else seed,
        penalties=(spec.repetition_penalty, spec.presence_penalty, 0.0),
        min_tokens=spec.min_tokens,
    )
    stop = StopParams(
        max_tokens=min(spec.max_tokens, max_model_len - len(prompt)),
        min_tokens=spec.min_tokens,
        stop_strings=spec.stop,
    )
    detokenizer = Detokenizer(DECODER, prompt, stop)
    ids, text, logprobs, reason = list(prompt), "", [], ""
    while not reason:
        token, logprob = next_token(ids, draw)
        ids.append(token)
        logprobs.append(logprob)
        count = len(ids) - len(prompt)
        ends = token == EOS and count >= stop.min_tokens
        text += detokenizer.push(token, visible=not ends)
        if ends or detokenizer.matched is not None:
            reason = "stop"
        elif count >= stop.max_tokens:
            text += detokenizer.flush()
            reason = "length" if detokenizer.matched is None else "stop"
    text += detokenizer.flush()
    return Answer(
        ids=tuple(ids[len(prompt) :]), text=text, finish_reason=reason, logprobs=tuple(logprobs)
    )
