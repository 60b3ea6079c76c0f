"""Stand-ins that a test can reason about: a runner that is a pure function, a byte tokenizer."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence

import numpy as np

from octavo.engine.batch import Logprobs, Sampled, StepInput, StepOutput
from octavo.engine.beam_search import Candidates
from octavo.engine.request import Request
from octavo.v1.block_hash import BlockHash

BLOCK = 16
BYTE_VOCAB = 258
"""256 bytes, then an end-of-sequence and a beginning-of-sequence token."""
EOS = 256


def next_token(ids: Sequence[int], seed: int, vocab_size: int = 256) -> int:
    """The fake model: a token that depends on every id so far and on the seed."""
    data = ",".join(map(str, ids)).encode()
    h = hashlib.blake2b(data, key=str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(h, "big") % vocab_size


def next_logprobs(ids: Sequence[int]) -> np.ndarray:
    """The fake model's distribution (float32), for a beam search; ends are rather probable."""
    data = ",".join(map(str, ids)).encode()
    seed = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
    logits = 2 * np.random.default_rng(seed).standard_normal(BYTE_VOCAB)
    logits[EOS] += 4
    logits -= np.log(np.exp(logits).sum())
    return logits.astype(np.float32)


def next_candidates(ids: Sequence[int], count: int) -> Candidates:
    """The best of that distribution."""
    logprobs = next_logprobs(ids)
    best = np.argsort(-logprobs, kind="stable")[:count]
    return Candidates(token_ids=tuple(best.tolist()), logprobs=tuple(logprobs[best].tolist()))


def expected_output(
    prompt: Sequence[int], seed: int, count: int, token: Callable[..., int] = next_token
) -> list[int]:
    """What the fake model says after a prompt, whatever else runs."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(token(ids, seed))
    return ids[len(prompt) :]


def mark_of(hash_root: BlockHash) -> int:
    """What the fake runner marks content with: the same number for requests of one salt."""
    return int.from_bytes(hash_root[:2], "big") << 20


class FakeRunner:
    """Keeps token ids where a real runner keeps K and V, and reads them back through block tables.

    So a wrong table, a block reused too early, a copy that did not happen or a block of another
    salt changes the tokens.

    Args:
        before: called with each step; may raise to fail it.
        poison: choices for which it returns True have logits that are not finite.
        mask: choices for which it returns True have no token left to choose.
        token: the fake model.
    """

    def __init__(
        self,
        *,
        before: Callable[[StepInput], None] = lambda _: None,
        poison: Callable[[Request], bool] = lambda _: False,
        mask: Callable[[Request], bool] = lambda _: False,
        token: Callable[..., int] = next_token,
    ) -> None:
        self.pool: dict[int, list[int | None]] = {}
        self.host: dict[int, list[int | None]] = {}
        self.steps: list[StepInput] = []
        self._before = before
        self._poison = poison
        self._mask = mask
        self._token = token

    def run(self, step: StepInput) -> StepOutput:
        """Writes all rows, then samples."""
        self.steps.append(step)
        for source, slot in step.offloads:
            self.host[slot] = list(self.pool.get(source, [None] * BLOCK))
        for slot, target in step.restores:
            self.pool[target] = list(self.host[slot])
        for source, target in step.copies:
            self.pool[target] = list(self.pool[source])
        for row in step.rows:
            mark = mark_of(row.request.hash_root)
            for i, token in enumerate(row.token_ids, row.start):
                block = self.pool.setdefault(row.block_table[i // BLOCK], [None] * BLOCK)
                block[i % BLOCK] = token ^ mark
        self._before(step)
        output = StepOutput()
        for row in step.rows:
            length = row.start + len(row.token_ids)
            ids = [self.pool[row.block_table[i // BLOCK]][i % BLOCK] for i in range(length)]
            mark = mark_of(row.request.hash_root)
            known = [t ^ mark for t in ids if t is not None]
            if len(known) != length:
                raise AssertionError(f"position {ids.index(None)} was never written")
            for spec in row.samples:
                output.sampled[spec.request.id] = self._sample(spec.request, known)
            if row.prompt_logprobs is not None:
                wanted = row.request.prompt_ids[row.start + 1 : length + 1]
                output.prompt_logprobs[row.request.id] = tuple(map(one_logprob, wanted))
        return output

    def read_page(self, slot: int) -> bytes:
        """The tokens of a slot as bytes."""
        return json.dumps(self.host[slot]).encode()

    def write_page(self, slot: int, page: bytes) -> None:
        """Fills a slot."""
        self.host[slot] = json.loads(page)

    def _sample(self, request: Request, ids: list[int]) -> Sampled:
        if self._poison(request):
            return Sampled(token_ids=(), finite=False)
        if self._mask(request):
            return Sampled(token_ids=())
        if request.sampling.num_candidates:
            best = next_candidates(ids, request.sampling.num_candidates)
            return Sampled(token_ids=(), candidates=best)
        token = self._token(ids, request.sampling.seed)
        logprobs = (one_logprob(token),) if request.sampling.logprobs is not None else ()
        return Sampled(token_ids=(token,), logprobs=logprobs)


def one_logprob(token: int) -> Logprobs:
    """An entry with nothing but the token itself."""
    return Logprobs(token_ids=(token,), logprobs=(-1.0,), ranks=(1,))


def byte_tokenizer_json() -> bytes:
    """A byte-level tokenizer.json: id = byte, then <|end|> and <|begin|> as control tokens."""
    alphabet = _byte_alphabet()
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                _control(EOS, "<|end|>"),
                _control(EOS + 1, "<|begin|>"),
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "post_processor": None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {char: i for i, char in enumerate(alphabet)},
                "merges": [],
            },
        }
    ).encode()


def _control(id: int, text: str) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": id, "content": text, "special": True, **flags}


def _byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            chars[byte] = chr(byte)
        else:
            chars[byte] = chr(256 + extra)
            extra += 1
    return [chars[b] for b in range(256)]


class FakeEnv:
    """Time that a test moves, chance and ids from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.time = 1000.0
        self._seed = seed
        self._ids = random.Random(f"{seed}:ids")

    def now(self) -> float:
        """The test's time."""
        return self.time

    def wall(self) -> float:
        """The test's time, some years on."""
        return 1.7e9 + self.time

    def rng(self, name: str) -> random.Random:
        """A stream that depends on seed and name only."""
        return random.Random(f"{self._seed}:{name}")

    def new_id(self) -> str:
        """The next id of the seed."""
        return f"{self._ids.getrandbits(128):032x}"
