"""A small tokenizer with whole words, made in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WORDS = tuple(map("".join, itertools.product("bdfg", "aeio", "klmn")))


def word_tokenizer(words: Sequence[str] = WORDS) -> Tokenizer:
    """Returns a byte-level tokenizer with one token a word, " bak" and so on."""
    pieces = [f"\u0120{word}" for word in words]
    vocabulary = {piece: number for number, piece in enumerate(["?", "\u0120A9", *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
