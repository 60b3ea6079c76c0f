"""Renders a model's chat template and turns the result into token ids.

Control tokens come from the template only. Where a caller's text holds the literal spelling of
one, or its beginning at the very end, a marker breaks it before rendering; afterwards such text
is encoded as plain text. The template runs in a sandbox: see template_sandbox.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from octavo.runtime.env import Env, SystemEnv
from octavo.runtime.template_sandbox import Sandbox
from octavo.runtime.tokenizer import SpecialToken, Tokenizer
from octavo.v1.errors import INVALID_VALUE, OctavoError

_MARKERS: Final = tuple(chr(c) for c in range(0xFDD0, 0xFDF0))
"""Noncharacters: no text has them by right, and a text that does gets another pair."""


@dataclass(frozen=True, slots=True)
class _Controls:
    """The control tokens of one tokenizer, ready for searching."""

    ids: Mapping[str, int]
    literal: re.Pattern[str]
    genuine: re.Pattern[str]
    prefixes: frozenset[str]
    """Every proper beginning of a control token."""
    prefix_ends: frozenset[str]
    longest: int


@lru_cache(maxsize=16)
def _controls(specials: Sequence[SpecialToken]) -> _Controls:
    texts = sorted((s.text for s in specials if s.text), key=len, reverse=True)
    flags = {s.text: s for s in specials}
    swallowing = (
        (r"\s*" if flags[t].lstrip else "") + re.escape(t) + (r"\s*" if flags[t].rstrip else "")
        for t in texts
    )
    prefixes = frozenset(t[:k] for t in texts for k in range(1, len(t)))
    never = r"(?!)"
    return _Controls(
        ids={s.text.strip(): s.id for s in specials},
        literal=re.compile("|".join(re.escape(t) for t in texts if t[1:]) or never),
        genuine=re.compile(f"({'|'.join(swallowing)})" if texts else f"({never})"),
        prefixes=prefixes,
        prefix_ends=frozenset(p[-1] for p in prefixes),
        longest=max(map(len, texts), default=0),
    )


class _Guard:
    """Breaks control tokens in callers' text."""

    def __init__(self, controls: _Controls, marker: str, tag: str) -> None:
        self._controls = controls
        self.marker = marker
        self.tag = tag
        self.used = False
        """A marker was put in."""
        self.collides = False
        """The text holds marker or tag already."""
        self.chars = 0

    def value(self, value: object) -> object:
        """Returns plain JSON data with every string guarded."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(k): self.value(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(v) for v in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise TypeError(f"not JSON: {type(value).__name__}")

    def message(self, message: Mapping[str, object]) -> dict[str, object]:
        """Guards a message; its role is one of a fixed set and may be part of a control token."""
        return {k: v if k == "role" else self.value(v) for k, v in message.items()}

    def text(self, text: str) -> str:
        """Returns the text with a marker inside each control token and at a begun one."""
        self.chars += len(text)
        if not text.isascii() and (self.marker in text or self.tag in text):
            self.collides = True
        # Again until nothing is found: a token may begin within another one.
        while found := set(self._controls.literal.findall(text)):
            self.used = True
            for token in found:
                text = text.replace(token, f"{token[:1]}{self.marker}{token[1:]}")
        begun = self._begun(text)
        if begun is not None:
            text = f"{text[: begun + 1]}{self.marker}{text[begun + 1 :]}"
            self.used = True
        return text

    def _begun(self, text: str) -> int | None:
        if text[-1:] not in self._controls.prefix_ends:
            return None
        for size in range(min(self._controls.longest - 1, len(text)), 0, -1):
            if text[-size:] in self._controls.prefixes:
                return len(text) - size
        return None


class ChatTemplate:
    """A model's chat template.

    Args:
        source: the Jinja text of `chat_template.jinja`.
        bos_token: what the template may write as `bos_token`.
        eos_token: what the template may write as `eos_token`.
        env: the clock for `strftime_now` and the deadline.

    Raises:
        OctavoError: MODEL_UNREADABLE when the text is no template.
    """

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, env: Env | None = None
    ) -> None:
        self.source = source
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._sandbox = Sandbox(source, env or SystemEnv())

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, object],
        max_tokens: int | None = None,
    ) -> list[int]:
        """Returns the prompt's ids.

        Args:
            tokenizer: the model's tokenizer.
            messages: plain JSON data, roles already checked.
            add_generation_prompt: end with the beginning of an answer.
            continue_final_message: end within the last message, so that the answer continues it.
            kwargs: further variables of the template, plain JSON data.
            max_tokens: where a prompt is too long to be worth encoding; None encodes any.

        Raises:
            OctavoError: INVALID_VALUE when the template refuses the messages or takes too much,
                CONTEXT_LENGTH_EXCEEDED when the length of the text alone is too much.
        """
        controls = _controls(tokenizer.specials)
        guard, turns, arguments = _guarded(controls, messages, kwargs)
        if continue_final_message:
            turns[-1]["content"] = f"{_final_text(turns)}{guard.tag} "
        variables = {**self._fixed, **arguments}
        text = self._sandbox.render(
            {
                **variables,
                "messages": turns,
                "tools": variables.get("tools"),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
            num_input_chars=guard.chars,
        )
        if continue_final_message:
            text = _cut_at(text, guard.tag)
        if max_tokens is not None:
            unmarked = text.replace(guard.marker, "") if guard.used else text
            tokenizer.check_length(unmarked, max_tokens, param="messages")
        if not guard.used and not tokenizer.looks_like_special:
            return tokenizer.encode(text, allow_special=True)
        return _encode_apart(text, tokenizer, controls, guard.marker)


def _encode_apart(text: str, tokenizer: Tokenizer, controls: _Controls, marker: str) -> list[int]:
    ids: list[int] = []
    for i, piece in enumerate(controls.genuine.split(text)):
        if i % 2:
            ids.append(controls.ids[piece.strip()])
        elif piece:
            ids += tokenizer.encode(piece.replace(marker, ""), allow_special=False)
    return ids


def _guarded(
    controls: _Controls,
    messages: Sequence[Mapping[str, object]],
    kwargs: Mapping[str, object],
) -> tuple[_Guard, list[dict[str, object]], dict[str, object]]:
    """Returns messages and arguments guarded by the first pair of markers that they lack."""
    for marker, tag in zip(_MARKERS[::2], _MARKERS[1::2], strict=True):
        guard = _Guard(controls, marker, tag)
        turns = [guard.message(m) for m in messages]
        arguments = {k: guard.value(v) for k, v in kwargs.items()}
        if not guard.collides:
            return guard, turns, arguments
    raise OctavoError(
        INVALID_VALUE, param="messages", reason="the text is full of Unicode noncharacters"
    )


def _final_text(turns: Sequence[Mapping[str, object]]) -> str:
    content = turns[-1].get("content") if turns else None
    if not isinstance(content, str):
        raise OctavoError(
            INVALID_VALUE,
            param="continue_final_message",
            reason="the last message has no text to continue",
        )
    return content


def _cut_at(text: str, tag: str) -> str:
    end = text.rfind(tag)
    if end < 0:
        raise OctavoError(
            INVALID_VALUE,
            param="continue_final_message",
            reason="the chat template leaves out the last message",
        )
    kept = text[end : end + 2] == f"{tag} "
    return text[:end] if kept else text[:end].rstrip()
