"""Log-probabilities in the shapes of chat, of completions and of vLLM's prompt_logprobs.

A token that is part of a character shows U+FFFD in chat, where `bytes` identifies it; completions
has no bytes, so such a token is called `token_id:N` there. Minus infinity is floored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import common_pb2
from octavo.v1.limits import LOGPROB_FLOOR

Position = common_pb2.PositionLogprobs
Candidate = common_pb2.TokenLogprob

HIDDEN: Final = "token_id:{}"


def floored(value: float) -> float:
    """Returns a number that JSON has; NaN is floored as well."""
    return value if value > LOGPROB_FLOOR else LOGPROB_FLOOR


def chat_logprobs(
    positions: Iterable[Position], tokenizer: Tokenizer, *, alternatives: int
) -> list[dict[str, object]]:
    """Returns the `content` list: the chosen tokens, each with the most probable ones."""
    entries: list[dict[str, object]] = []
    for position in positions:
        entry = _chat_token(position.candidates[0], tokenizer)
        ranked = _distinct(position)[:alternatives]
        entry["top_logprobs"] = [_chat_token(c, tokenizer) for c in ranked]
        entries.append(entry)
    return entries


def _chat_token(candidate: Candidate, tokenizer: Tokenizer) -> dict[str, object]:
    data = tokenizer.token_bytes(candidate.token_id)
    return {
        "token": data.decode(errors="replace"),
        "logprob": floored(candidate.logprob),
        "bytes": list(data),
    }


def _distinct(position: Position) -> list[Candidate]:
    """Returns the candidates by probability; the chosen one may be among the best as well."""
    by_id = {c.token_id: c for c in reversed(position.candidates)}
    chosen = position.candidates[0].token_id
    return sorted(by_id.values(), key=lambda c: (-floored(c.logprob), c.token_id != chosen))


@dataclass(slots=True)
class LegacyLogprobs:
    """The four parallel lists of completions."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def extend(
        self, positions: Iterable[Position], tokenizer: Tokenizer, *, alternatives: int, offset: int
    ) -> int:
        """Appends generated positions.

        Args:
            positions: one for each token.
            tokenizer: gives the tokens' texts.
            alternatives: how many to list besides the chosen token.
            offset: characters before the first of these tokens.

        Returns:
            The offset behind the last one.
        """
        for position in positions:
            chosen = position.candidates[0]
            kept = [chosen, *_distinct(position)[:alternatives]]
            top: dict[str, float] = {}
            for candidate in kept:  # two ids may have one text: the likelier one counts
                name = token_name(candidate.token_id, tokenizer)
                value = floored(candidate.logprob)
                top[name] = max(value, top.get(name, value))
            self._append(
                token_name(chosen.token_id, tokenizer), floored(chosen.logprob), top, offset
            )
            offset += len(tokenizer.token_text(chosen.token_id))
        return offset

    def extend_prompt(
        self,
        ids: Sequence[int],
        positions: Sequence[Position],
        tokenizer: Tokenizer,
        *,
        alternatives: int,
    ) -> int:
        """Appends the prompt's positions, of which nothing predicts the first one."""
        self._append(token_name(ids[0], tokenizer), None, None, 0)
        offset = len(tokenizer.token_text(ids[0]))
        return self.extend(positions[1:], tokenizer, alternatives=alternatives, offset=offset)

    def _append(
        self, token: str, logprob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)


def token_name(id: int, tokenizer: Tokenizer) -> str:
    """Returns a token's text if it has one of its own."""
    try:
        return tokenizer.token_bytes(id).decode()
    except UnicodeDecodeError:
        return HIDDEN.format(id)


def prompt_logprobs(
    positions: Sequence[Position], tokenizer: Tokenizer
) -> list[dict[str, dict[str, object]] | None]:
    """Returns vLLM's list: for each position the candidates by id; null for the first one."""
    return [
        {
            str(c.token_id): {
                "logprob": floored(c.logprob),
                "rank": c.rank,
                "decoded_token": tokenizer.token_text(c.token_id),
            }
            for c in position.candidates
        }
        or None
        for position in positions
    ]
