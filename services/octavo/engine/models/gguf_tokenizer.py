"""A tokenizer.json made from the tokenizer that a GGUF file describes.

Byte-level BPE only, with the text splits of the families that we know. A split is a public fact of
a tokenizer that GGUF gives by name alone, so an unknown name is refused: guessing would give
other tokens than the model was trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from octavo.engine.models.fields import Fields, UnreadableError, shown

_Json = dict[str, object]

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_KINDS: Final = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE)

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, use_regex: bool) -> _Json:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _split_by_digits(digits: str) -> _Json:
    """Splits as GPT-4 and its descendants do, with `digits` as the pattern of numbers."""
    pattern = {"Regex": f"{_CONTRACTIONS}|{_WORDS}|{digits}|{_REST}"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


def _gpt2() -> _Json:
    return _byte_level(use_regex=True)


def _smollm() -> _Json:
    digits = {"type": "Digits", "individual_digits": True}
    return {"type": "Sequence", "pretokenizers": [digits, _byte_level(use_regex=True)]}


def _llama3() -> _Json:
    return _split_by_digits(r"\p{N}{1,3}")


def _qwen2() -> _Json:
    return _split_by_digits(r"\p{N}")


_SPLITS: Final[dict[str, Callable[[], _Json]]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "qwen2": _qwen2,
}
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""A word that is a token is taken whole, without asking the merges."""
_COMPOSED: Final = frozenset({"qwen2"})
"""Text is brought to NFC first."""


def tokenizer_json(metadata: dict[str, object], vocab_size: int) -> bytes:
    """Returns the tokenizer as Hugging Face's tokenizers read it.

    Raises:
        UnreadableError: it is of another kind, its split is unknown, or its tables are wrong.
    """
    fields = Fields(metadata, "tokenizer.ggml.")
    if fields.text("model") != "gpt2":
        raise UnreadableError(
            f"its tokenizer is {shown(fields.get('model'))}; only byte-level BPE (gpt2) is read"
        )
    pre = fields.text("pre", "default")
    if pre not in _SPLITS:
        raise UnreadableError(f"its text split is {shown(pre)}; known: {', '.join(_SPLITS)}")
    if fields.flag("add_space_prefix", default=False):
        raise UnreadableError("tokenizer.ggml.add_space_prefix is not used with byte-level BPE")
    tokens = fields.texts("tokens")
    vocab = {token: number for number, token in enumerate(tokens)}
    if not tokens or len(tokens) > vocab_size or len(vocab) != len(tokens):
        raise UnreadableError(
            f"{len(vocab)} different tokens of {len(tokens)}, embedding {vocab_size}"
        )
    return msgspec.json.encode(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": _added(fields, tokens),
            "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
            "pre_tokenizer": _SPLITS[pre](),
            "post_processor": None,
            "decoder": _byte_level(use_regex=True),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": pre in _WHOLE_WORDS_FIRST,
                "vocab": vocab,
                "merges": _merges(fields, vocab),
            },
        }
    )


def _added(fields: Fields, tokens: list[str]) -> list[_Json]:
    kinds = fields.get("token_type", [_NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens) or not set(kinds) <= set(_KINDS):
        raise UnreadableError("tokenizer.ggml.token_type does not give each token a known type")
    return [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind != _USER_DEFINED,
        }
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]


def _merges(fields: Fields, vocab: dict[str, int]) -> list[list[str]]:
    merges = [merge.split(" ") for merge in fields.texts("merges")]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocab.keys():
            raise UnreadableError(
                f"merge {shown(' '.join(merge))} is not of two tokens that make one"
            )
    return merges
