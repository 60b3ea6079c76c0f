"""The requests of a run as plain data: what is asked, how the client behaves, and its body."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.fakes import EOS
from tests.sim.env import stream
from tests.sim.options import Options

BOS = EOS + 1
POISONS = ("raise", "kill", "nan")
_WORDS = ("ab", "a b", "bb", "c", "aaa", "d\n", "ba")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One request."""

    name: str
    at: float
    """Seconds after the start."""
    chat: bool
    stream: bool
    prompt: str
    max_tokens: int
    gateway: int = 0
    n: int = 1
    temperature: float = 1.0
    seed: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    salt: str = ""
    priority: int = 0
    timeout_s: int = 0
    """The client's own limit, which makes a deadline; zero: none."""
    leave_after_s: float | None = None
    stall_after: int | None = None
    """Pieces of the body after which the client reads no more until it leaves."""
    retries: int = 0
    key: str = ""
    """Idempotency key; empty: none."""
    twice: bool = False
    """Sent to two gateways at once."""
    poison: str = ""
    poison_at: int = 0
    """Output tokens at which the poison acts."""

    def prompt_ids(self) -> list[int]:
        """What the engine must compute, derived without the production tokenizer."""
        text = list(self.prompt.encode())
        if not self.chat:
            return [BOS, *text]
        return [BOS, *b"user\n", *text, EOS, BOS, *b"assistant\n"]

    def body(self) -> dict[str, object]:
        """The JSON body."""
        body: dict[str, object] = {
            "model": "fake",
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "n": self.n,
            "temperature": self.temperature,
            "stream": self.stream,
            "return_token_ids": True,
            "repetition_penalty": self.repetition_penalty,
            "presence_penalty": self.presence_penalty,
            "priority": self.priority,
        }
        if self.chat:
            body["messages"] = [{"role": "user", "content": self.prompt}]
        else:
            body["prompt"] = self.prompt
        if self.seed is not None:
            body["seed"] = self.seed
        if self.stop:
            body["stop"] = list(self.stop)
        if self.salt:
            body["cache_salt"] = self.salt
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if self.prompt_logprobs:
            body["prompt_logprobs"] = 0
        if self.logprobs is not None and self.chat:
            body |= {"logprobs": True, "top_logprobs": self.logprobs}
        elif self.logprobs is not None:
            body["logprobs"] = self.logprobs
        return body


def poison_of(prompt_ids: tuple[int, ...]) -> tuple[str, int]:
    """Returns the poison that a prompt carries and the output length at which it acts."""
    head = bytes(i for i in prompt_ids[:32] if i < 256)
    for poison in POISONS:
        found = head.find(b"!%s" % poison.encode())
        if found >= 0:
            return poison, head[found + 1 + len(poison)] - ord("0")
    return "", 0


def draw_requests(seed: int, options: Options) -> list[Spec]:
    """Draws all requests of a run; each from its own stream, so that leaving one out changes none.

    The poisoned ones are among them: at most two.
    """
    rng = stream(seed, "workload")
    prefixes = [_text(rng, rng.randint(16, 90)) for _ in range(3)]
    specs = [
        _spec(stream(seed, f"request:{i}"), f"r{i}", options, prefixes)
        for i in range(options.requests)
    ]
    for poison in options.poisons:
        i = rng.randrange(len(specs))
        at = rng.randint(0, 4)
        specs[i] = _replaced(specs[i], poison, at)
    return specs


def _replaced(spec: Spec, poison: str, at: int) -> Spec:
    kept = {name: getattr(spec, name) for name in ("name", "at", "chat", "stream", "gateway")}
    return Spec(
        **kept,
        prompt=f"!{poison}{at}{spec.prompt[8:]}",
        max_tokens=max(spec.max_tokens, 6),
        min_tokens=6,
        poison=poison,
        poison_at=at,
    )


def _spec(rng: random.Random, name: str, options: Options, prefixes: list[str]) -> Spec:
    at = rng.uniform(0.1, options.fault_s)
    if options.bursts:
        at = rng.choice(options.bursts) + rng.uniform(0.0, 0.2)
    max_tokens = rng.choice((1, 3, 8, 24, 40, 40, 64))
    prompt = rng.choice(["", *prefixes]) + f"#{name} " + _text(rng, rng.randint(1, 40))
    streams = rng.random() < options.stream_share
    chat = rng.random() < 0.5
    odd = options.odd_share
    n = rng.choice((2, 3)) if rng.random() < odd else 1
    key = f"key-{name}" if rng.random() < options.key_share else ""
    return Spec(
        name=name,
        at=round(at, 3),
        chat=chat,
        stream=streams,
        prompt=prompt,
        max_tokens=max_tokens,
        gateway=rng.randrange(options.gateways),
        n=n,
        temperature=rng.choice((0.0, 1.0)) if n == 1 else 1.0,
        seed=rng.randrange(2**31) if rng.random() < 0.3 else None,
        min_tokens=min(max_tokens, rng.choice((1, 12))) if rng.random() < odd else 0,
        stop=tuple(rng.sample(_WORDS, rng.randint(1, 2))) if rng.random() < odd else (),
        logprobs=rng.choice((0, 2)) if rng.random() < odd else None,
        prompt_logprobs=not streams and rng.random() < odd,
        repetition_penalty=1.25 if rng.random() < odd / 2 else 1.0,
        presence_penalty=0.5 if rng.random() < odd else 0.0,
        salt=rng.choice(("", "s")),
        priority=rng.choice((0, 0, 0, 1)),
        timeout_s=rng.choice((4, 8)) if not streams and rng.random() < odd else 0,
        leave_after_s=rng.uniform(0.02, 4.0) if rng.random() < options.leave_share else None,
        stall_after=rng.randint(1, 6) if streams and rng.random() < options.stall_share else None,
        retries=2 if rng.random() < options.retry_share else 0,
        key=key,
        twice=bool(key) and rng.random() < 0.5,
    )


def _text(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("abcde fgé") for _ in range(length))
