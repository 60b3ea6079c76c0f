from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.runtime.smollm2_files import tokenizer, tokenizer_json

from octavo.runtime.tokenizer_bound import LengthBound, byte_table
from octavo.v1.errors import CONTEXT_LENGTH_EXCEEDED, OctavoError

TOKENS = ("a", "abcd", *byte_table(), *(f"<0x{b:02X}>" for b in range(256)))
LONGEST = 6


@functools.cache
def names() -> list[str]:
    return [tokenizer().token_name(i) for i in range(tokenizer().vocab_size)]


@functools.cache
def bound_of_smollm2() -> LengthBound:
    return LengthBound.of(json.loads(tokenizer_json()), names())


def bound(**changes: Any) -> int:
    raw: dict[str, Any] = {
        "model": {"type": "BPE"},
        "pre_tokenizer": {"type": "ByteLevel"},
        **changes,
    }
    return LengthBound.of(raw, TOKENS).chars_per_token


@settings(max_examples=100)
@given(st.text(max_size=300) | st.integers(0, 2000).map(lambda n: " " * n + "=" * n))
@example("\x04\x16" * 200)
@example("\U0010ffff\U000e0041" * 200)
def test_no_text_has_fewer_tokens(text: str) -> None:
    assert bound_of_smollm2().least_tokens(text) <= len(
        tokenizer().encode(text, allow_special=True)
    )


def test_the_longest_token_bounds_it() -> None:
    longest = max(map(len, names()))
    assert bound_of_smollm2().chars_per_token == longest
    assert bound_of_smollm2().least_tokens("x" * (10 * longest + 1)) == 11


def test_a_vocabulary_without_some_continuation_byte_bounds_nothing() -> None:
    raw = {"model": {"type": "BPE"}, "pre_tokenizer": {"type": "ByteLevel"}}
    assert LengthBound.of(raw, ["a", "b"]) == LengthBound()
    assert LengthBound().least_tokens("a" * 1000) == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, LONGEST),
        ({"pre_tokenizer": None, "model": {"type": "BPE", "byte_fallback": True}}, LONGEST),
        ({"normalizer": {"type": "NFC"}}, 4 * LONGEST),
        (
            {
                "normalizer": {
                    "type": "Sequence",
                    "normalizers": [
                        {"type": "Prepend", "prepend": "_"},
                        {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
                    ],
                }
            },
            LONGEST,
        ),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": "_"}}, 0),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"}}, 0),
        ({"normalizer": {"type": "Strip"}}, 0),
        ({"pre_tokenizer": None}, 0),
        ({"model": {"type": "WordPiece"}}, 0),
        (
            {
                "pre_tokenizer": {
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "behavior": "Removed"},
                        {"type": "ByteLevel"},
                    ],
                }
            },
            0,
        ),
        ({"added_tokens": [{"content": "<s>", "lstrip": True}]}, 0),
    ],
    ids=str,
)
def test_what_could_shorten_a_text_means_that_nothing_is_known(
    changes: dict[str, Any], expected: int
) -> None:
    assert bound(**changes) == expected


def test_a_length_that_alone_is_too_much_says_so() -> None:
    tokenizer().check_length("x" * 512, 512, param="prompt")
    with pytest.raises(OctavoError) as caught:
        tokenizer().check_length("x" * 100_000, 512, param="prompt")
    assert caught.value.kind is CONTEXT_LENGTH_EXCEEDED
    assert "has at least" in caught.value.message
