"""How few tokens a text can have, told by its length and by its `tokenizer.json`.

A text that must be too long can then be refused without encoding it. Whatever could make a text
shorter before it is cut into tokens, and is not understood here, means that nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_SHRINKING: Final[Mapping[str, int]] = {"NFD": 1, "Prepend": 1, "NFC": 4}
"""Characters that a normalizer makes one of: NFC composes four at most."""

_KEEPING: Final = frozenset({"ByteLevel", "Digits", "Metaspace", "Split"})
"""Pre-tokenizers that drop nothing (a Split unless it is told to)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthBound:
    """What one tokenizer makes of a length."""

    chars_per_token: int = 0
    """What one token stands for at most; zero when nothing is known."""
    lost: str = ""
    """Characters without a token, which leave nothing behind."""

    @classmethod
    def of(cls, raw: Mapping[str, object], tokens: Collection[str]) -> LengthBound:
        """Reads it from a parsed `tokenizer.json` and its vocabulary."""
        model, added = raw["model"], raw.get("added_tokens") or []
        assert isinstance(model, dict)
        assert isinstance(added, list)
        cutters = list(_steps(raw.get("pre_tokenizer"), "pretokenizers"))
        keeps = all(
            c.get("type") in _KEEPING and c.get("behavior") != "Removed" for c in cutters
        ) and not any(t.get("lstrip") or t.get("rstrip") for t in added)
        byte_level = any(c.get("type") == "ByteLevel" for c in cutters)
        lost = _lost(frozenset(tokens), byte_level=byte_level)
        covers = byte_level or bool(model.get("byte_fallback"))
        if model.get("type") != "BPE" or not (keeps and covers) or lost is None:
            return cls()
        longest = max(map(len, tokens), default=0)
        for step in _steps(raw.get("normalizer"), "normalizers"):
            longest *= _shrinking(step)
        return cls(chars_per_token=longest, lost=lost)

    def least_tokens(self, text: str) -> int:
        """Returns how many tokens a text has at least."""
        if not self.chars_per_token:
            return 0
        kept = len(text) - sum(map(text.count, self.lost))
        return -(-kept // self.chars_per_token)


def byte_table() -> dict[str, int]:
    """Returns the byte behind each character of byte-level BPE, as GPT-2 defined it."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _lost(tokens: Collection[str], *, byte_level: bool) -> str | None:
    """Returns the ASCII characters without a token; None when others may have none either."""
    names = {b: c for c, b in byte_table().items()} if byte_level else {}
    missing = [b for b in range(256) if names.get(b, f"<0x{b:02X}>") not in tokens]
    # All other characters have continuation bytes, each of which gives a token by itself.
    if any(0x80 <= b <= 0xBF for b in missing):
        return None
    return "".join(chr(b) for b in missing if b < 0x80)


def _steps(component: object, inner: str) -> Iterator[Mapping[str, object]]:
    """Yields a component, or those of a sequence in order."""
    if isinstance(component, dict) and component.get("type") == "Sequence":
        for step in component[inner]:
            yield from _steps(step, inner)
    elif isinstance(component, dict):
        yield component


def _shrinking(step: Mapping[str, object]) -> int:
    if step.get("type") == "Replace":
        pattern, content = step.get("pattern"), step.get("content")
        found = pattern.get("String") if isinstance(pattern, dict) else None
        known = isinstance(found, str) and isinstance(content, str)
        return int(known and len(str(found)) <= len(str(content)))
    return _SHRINKING.get(str(step.get("type")), 0)
