"""Text to token ids and back, with the faster of two libraries that give equal ids.

`fastokens` encodes 2 KB in a fifth of the time of `tokenizers`; it serves where it loads the file
and answers a probe of several hundred strings alike. Knows nothing of chats: see chat_template.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import fastokens
import structlog
import tokenizers

from octavo.runtime.tokenizer_bound import LengthBound, byte_table
from octavo.runtime.tokenizer_probe import probe_texts
from octavo.v1.errors import CONTEXT_LENGTH_EXCEEDED, MODEL_UNREADABLE, OctavoError

log = structlog.get_logger(__name__)

SEGMENT_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Ids of text between control tokens: a chat that sends its history again costs its new turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialToken:
    """A control token of the vocabulary."""

    id: int
    text: str
    lstrip: bool
    """Swallows white space on its left."""
    rstrip: bool
    """Swallows white space on its right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backend:
    """What both libraries can do."""

    name: str
    encode: Callable[[str], list[int]]
    """Recognises control tokens in the text."""
    encode_plain: Callable[[str], list[int]]
    """Takes control tokens in the text for ordinary text."""
    decode: Callable[[list[int], bool], str]


class Tokenizer:
    """One model's vocabulary; made by `from_json`."""

    def __init__(
        self,
        backend: _Backend,
        *,
        tokens: Mapping[int, str],
        specials: Sequence[SpecialToken],
        byte_level: bool,
        looks_like_special: bool,
        bound: LengthBound,
    ) -> None:
        self.backend = backend.name
        self.vocab_size = max(tokens, default=-1) + 1
        self.specials = tuple(specials)
        self.special_ids = frozenset(s.id for s in specials)
        self.looks_like_special = looks_like_special
        """Other spellings than the literal one can become a control token (by normalisation)."""
        self._bound = bound
        self._backend = backend
        self._tokens = tokens
        self._byte_of = byte_table() if byte_level else {}

    @classmethod
    def from_json(cls, data: bytes) -> Tokenizer:
        """Loads a `tokenizer.json`; see `with_reference` for errors."""
        return cls.with_reference(data)[0]

    @classmethod
    def with_reference(cls, data: bytes) -> tuple[Tokenizer, tokenizers.Tokenizer]:
        """Loads a `tokenizer.json`, and returns besides what `tokenizers` makes of it.

        Raises:
            OctavoError: MODEL_UNREADABLE when `tokenizers` cannot read it.
        """
        try:
            text = data.decode()
            raw = json.loads(text)
            reference = _load(text)
        except Exception as error:  # tokenizers raises bare Exception
            raise OctavoError(
                MODEL_UNREADABLE, path="tokenizer.json", reason=str(error)[:200]
            ) from error
        tokens = {i: t for t, i in _vocabulary(raw).items()}
        added = [t for t in raw.get("added_tokens", []) if t.get("special")]
        specials = [
            SpecialToken(
                id=t["id"],
                text=t["content"],
                lstrip=bool(t.get("lstrip")),
                rstrip=bool(t.get("rstrip")),
            )
            for t in added
        ]
        fast = _fast_backend(text, reference, [s.text for s in specials])
        made = cls(
            fast or _reference_backend(reference, text),
            tokens=tokens,
            specials=specials,
            byte_level="ByteLevel" in json.dumps([raw.get("decoder"), raw.get("pre_tokenizer")]),
            looks_like_special=bool(raw.get("normalizer"))
            and any(t.get("normalized") for t in added),
            bound=LengthBound.of(raw, tokens.values()),
        )
        return made, reference

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Returns the ids; `allow_special` lets literal control tokens in the text become ids."""
        return self._backend.encode(text) if allow_special else self._backend.encode_plain(text)

    def check_length(self, text: str, max_tokens: int, *, param: str) -> None:
        """Raises CONTEXT_LENGTH_EXCEEDED for a text whose length alone makes it too long."""
        least = self._bound.least_tokens(text)
        if least > max_tokens:
            raise OctavoError(
                CONTEXT_LENGTH_EXCEEDED,
                param=param,
                limit=max_tokens,
                tokens=f"at least {least}",
            )

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Returns the text; half characters become U+FFFD, unknown ids nothing."""
        return self._backend.decode(list(ids), skip_special)

    def token_text(self, id: int) -> str:
        """Returns what one token shows alone; a half character is U+FFFD, see `token_bytes`."""
        return self.token_bytes(id).decode(errors="replace")

    def token_bytes(self, id: int) -> bytes:
        """Returns the exact bytes of one token; empty for an id outside the vocabulary."""
        token = self._tokens.get(id, "")
        if id in self.special_ids:
            return token.encode()
        if self._byte_of:
            try:
                return bytes(self._byte_of[c] for c in token)
            except KeyError:  # an added token is stored as it is
                return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()

    def token_name(self, id: int) -> str:
        """Returns the vocabulary's own spelling of a token."""
        return self._tokens.get(id, "")


def _vocabulary(raw: Mapping[str, object]) -> dict[str, int]:
    model = raw["model"]
    assert isinstance(model, dict)
    vocab = model["vocab"]
    # Unigram models keep a list of [token, score].
    pairs = vocab if isinstance(vocab, dict) else {t[0]: i for i, t in enumerate(vocab)}
    added = raw.get("added_tokens") or []
    assert isinstance(added, list)
    return {**pairs, **{t["content"]: t["id"] for t in added}}


def _load(text: str) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer.from_str(text)
    library.no_truncation()
    library.no_padding()
    return library


def _reference_backend(loud: tokenizers.Tokenizer, text: str) -> _Backend:
    quiet = _load(text)
    quiet.encode_special_tokens = True

    def encode(value: str) -> list[int]:
        ids: list[int] = loud.encode(value, add_special_tokens=False).ids
        return ids

    def encode_plain(value: str) -> list[int]:
        ids: list[int] = quiet.encode(value, add_special_tokens=False).ids
        return ids

    def decode(ids: list[int], skip: bool) -> str:
        shown: str = loud.decode(ids, skip_special_tokens=skip)
        return shown

    version = importlib.metadata.version("tokenizers")
    return _Backend(
        name=f"tokenizers {version}", encode=encode, encode_plain=encode_plain, decode=decode
    )


def _fast_backend(
    text: str, reference: tokenizers.Tokenizer, specials: Sequence[str]
) -> _Backend | None:
    """Returns the fast library, or None when it cannot be trusted with this file."""
    try:
        fast = fastokens.Tokenizer.from_json_str(text)
    except Exception as error:  # the library raises bare exceptions
        log.info("fast_tokenizer_unused", reason=str(error)[:200])
        return None
    fast.no_truncation()
    fast.no_padding()
    fast.enable_segment_cache(SEGMENT_CACHE_BYTES)

    def encode(value: str) -> list[int]:
        ids: list[int] = fast.encode(value).ids
        return ids

    def encode_plain(value: str) -> list[int]:
        ids: list[int] = fast.encode(value, split_special_tokens=True).ids
        return ids

    def decode(ids: list[int], skip: bool) -> str:
        shown: str = fast.decode(ids, skip_special_tokens=skip)
        return shown

    version = importlib.metadata.version("fastokens")
    backend = _Backend(
        name=f"fastokens {version}", encode=encode, encode_plain=encode_plain, decode=decode
    )
    differing = _first_difference(backend, reference, specials)
    if differing is not None:
        log.warning("fast_tokenizer_unused", reason="probe differs", probe=differing)
        return None
    return backend


def _first_difference(
    fast: _Backend, reference: tokenizers.Tokenizer, specials: Sequence[str]
) -> int | None:
    # Loading a file twice takes longer than all probes: the reference is switched instead.
    try:
        for plain, encode in ((False, fast.encode), (True, fast.encode_plain)):
            reference.encode_special_tokens = plain
            for number, text in enumerate(probe_texts(specials)):
                if not _agree(encode, fast.decode, reference, text):
                    return number
    finally:
        reference.encode_special_tokens = False
    return None


def _agree(
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int], bool], str],
    reference: tokenizers.Tokenizer,
    text: str,
) -> bool:
    try:
        ids = encode(text)
        return (
            ids == reference.encode(text, add_special_tokens=False).ids
            and decode(ids, True) == reference.decode(ids)
            and decode(ids[1:], False) == reference.decode(ids[1:], skip_special_tokens=False)
        )
    except Exception as error:  # a library that raises is not used
        log.warning("fast_tokenizer_raised", reason=str(error)[:200])
        return False
