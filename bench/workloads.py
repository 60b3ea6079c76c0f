"""The workloads W1 to W4: what is asked, how much at once, and when.

Made of single-word tokens, so that ids and text of a prompt are the same work. Lengths and arrivals
never change; the words come from a salt, and no two measurements may share one, else the second
would find its prompts in the server's prefix cache.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer

_POOL_WORDS: Final = 8000
_MIN_LETTERS: Final = 3
_WORD_MARKS: Final = ("\u0120", "\u2581")
"""How byte-level and sentencepiece vocabularies write a leading space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids and the text that is tokenised to exactly these."""

    ids: tuple[int, ...] = ()
    text: str = ""

    def __add__(self, other: Prompt) -> Prompt:
        return Prompt(ids=self.ids + other.ids, text=self.text + other.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One request of a workload; always greedy, and never ended before `max_tokens`."""

    shared: Prompt = Prompt()
    """What all prompts of the workload begin with; the system message of a chat."""
    own: Prompt
    max_tokens: int
    arrival_s: float = 0.0
    """When an open loop sends it, after the start."""

    @property
    def prompt(self) -> Prompt:
        """The whole prompt."""
        return self.shared + self.own


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests and how they are sent."""

    name: str
    items: tuple[WorkItem, ...]
    concurrency: int | None
    """Requests under way at once, the next sent when one ends; None sends each at its arrival."""

    def first(self, count: int) -> Workload:
        """Returns the workload cut to its first `count` requests; 0 keeps all."""
        items = self.items[:count] if count else self.items
        return Workload(name=self.name, items=items, concurrency=self.concurrency)


class Words:
    """Draws prompts from the single-word tokens of a vocabulary."""

    def __init__(self, tokenizer_json: bytes) -> None:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
        by_id = sorted(tokenizer.get_vocab().items(), key=lambda piece: piece[1])
        words = (
            (token_id, f" {piece[1:]}")
            for piece, token_id in by_id
            if piece.startswith(_WORD_MARKS) and _is_word(piece[1:])
        )
        # A word that merges otherwise in running text would make more tokens than were asked for.
        stable = (
            (token_id, text)
            for token_id, text in words
            if tokenizer.encode(text + text, add_special_tokens=False).ids == [token_id] * 2
        )
        self._pool = list(itertools.islice(stable, _POOL_WORDS))
        if not self._pool:
            raise ValueError("the vocabulary has no single-word tokens with a leading space")

    def draw(self, chance: random.Random, count: int) -> Prompt:
        """Returns a prompt of `count` tokens."""
        picks = chance.choices(self._pool, k=count)
        return Prompt(ids=tuple(i for i, _ in picks), text="".join(text for _, text in picks))


def _is_word(text: str) -> bool:
    return len(text) >= _MIN_LETTERS and text.isascii() and text.isalpha() and text.islower()


def latency(words: Words, salt: str) -> Workload:
    """W1: 4 requests one after the other, 128 tokens in, 128 out."""
    return _uniform("W1", words, salt, count=4, concurrency=1)


def throughput(words: Words, salt: str) -> Workload:
    """W2: 64 requests, 32 at once, 128 tokens in, 128 out."""
    return _uniform("W2", words, salt, count=64, concurrency=32)


def shared_prefix(words: Words, salt: str) -> Workload:
    """W3: 64 requests, 32 at once, 1,024 shared and 64 own tokens in, 32 out."""
    chance = random.Random(f"W3 {salt}")
    shared = words.draw(chance, 1024)
    items = (WorkItem(shared=shared, own=words.draw(chance, 64), max_tokens=32) for _ in range(64))
    return Workload(name="W3", items=tuple(items), concurrency=32)


def mixed(words: Words, salt: str, *, rate: float = 1.5) -> Workload:
    """W4: 48 requests by a Poisson process, 16 to 1,500 tokens in, 8 to 256 out.

    Args:
        words: where prompts come from.
        salt: decides the words.
        rate: requests a second that the gaps are drawn for.
    """
    shape, chance = random.Random("W4-shape"), random.Random(f"W4 {salt}")
    items: list[WorkItem] = []
    arrival_s = 0.0
    for number in range(48):
        num_prompt, num_output = _log_uniform(shape, 16, 1500), _log_uniform(shape, 8, 256)
        gap_s = shape.expovariate(1.0) / rate
        arrival_s += gap_s if number else 0.0
        own = words.draw(chance, num_prompt)
        items.append(WorkItem(own=own, max_tokens=num_output, arrival_s=arrival_s))
    return Workload(name="W4", items=tuple(items), concurrency=None)


BY_NAME: Final[dict[str, Callable[[Words, str], Workload]]] = {
    "W1": latency,
    "W2": throughput,
    "W3": shared_prefix,
    "W4": mixed,
}


def _uniform(name: str, words: Words, salt: str, *, count: int, concurrency: int) -> Workload:
    chance = random.Random(f"{name} {salt}")
    items = (WorkItem(own=words.draw(chance, 128), max_tokens=128) for _ in range(count))
    return Workload(name=name, items=tuple(items), concurrency=concurrency)


def _log_uniform(chance: random.Random, low: int, high: int) -> int:
    return round(math.exp(chance.uniform(math.log(low), math.log(high))))
