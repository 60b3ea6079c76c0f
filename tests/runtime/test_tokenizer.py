from __future__ import annotations

import functools
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.smollm2_files import tokenizer, tokenizer_json

from octavo.runtime import tokenizer as module
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1.errors import OctavoError


@functools.cache
def reference() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer_json().decode())


def test_the_fast_library_serves_smollm2() -> None:
    assert tokenizer().backend.startswith("fastokens ")
    assert tokenizer().vocab_size == 49152
    assert {0, 1, 2} < tokenizer().special_ids


@settings(max_examples=200)
@given(st.text(max_size=200))
def test_ids_equal_those_of_tokenizers(text: str) -> None:
    ids = tokenizer().encode(text, allow_special=True)
    assert ids == reference().encode(text, add_special_tokens=False).ids
    shown = tokenizer().decode(ids, skip_special=False)
    assert shown == reference().decode(ids, skip_special_tokens=False)
    assert b"".join(map(tokenizer().token_bytes, ids)).decode(errors="replace") == shown


def test_a_literal_control_token_is_text_unless_allowed() -> None:
    assert tokenizer().encode("a<|im_end|>", allow_special=True)[-1] == 2
    plain = tokenizer().encode("a<|im_end|>", allow_special=False)
    assert not set(plain) & tokenizer().special_ids
    assert tokenizer().decode(plain, skip_special=True) == "a<|im_end|>"


def test_special_tokens_are_hidden_when_skipped() -> None:
    ids = tokenizer().encode("<|im_start|>hi<|im_end|>", allow_special=True)
    assert tokenizer().decode(ids, skip_special=True) == "hi"
    assert tokenizer().decode(ids, skip_special=False) == "<|im_start|>hi<|im_end|>"


def test_half_characters_keep_their_bytes() -> None:
    ids = tokenizer().encode("👋🏽", allow_special=False)
    assert len(ids) > 2
    assert b"".join(map(tokenizer().token_bytes, ids)).decode() == "👋🏽"
    assert tokenizer().token_text(ids[0]) == "\ufffd"


def test_unknown_ids_decode_to_nothing() -> None:
    assert tokenizer().token_bytes(10**6) == b""
    assert tokenizer().token_text(10**6) == ""
    assert tokenizer().decode([10**6], skip_special=False) == ""


def test_bytes_of_byte_fallback_tokens() -> None:
    vocab = {"<unk>": 0, "<0xE2>": 1, "\u2581a": 2}
    file: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "ByteFallback"},
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [],
            "unk_token": "<unk>",
            "byte_fallback": True,
        },
    }
    loaded = Tokenizer.from_json(json.dumps(file).encode())
    assert [loaded.token_bytes(i) for i in (1, 2)] == [b"\xe2", b" a"]


def test_a_differing_probe_brings_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    load = module._load

    def other(text: str) -> tokenizers.Tokenizer:
        return load(text.replace('"use_regex": true', '"use_regex": false'))

    monkeypatch.setattr(module, "_load", other)
    loaded = Tokenizer.from_json(tokenizer_json())
    assert loaded.backend.startswith("tokenizers ")
    apart, together = (t.encode("a\n\n\n  b", allow_special=True) for t in (tokenizer(), loaded))
    assert apart != together


def test_a_file_the_fast_library_cannot_load_is_served_by_the_fallback() -> None:
    file = json.loads(tokenizer_json())
    file["model"] = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    file["added_tokens"] = []
    loaded = Tokenizer.from_json(json.dumps(file).encode())
    assert loaded.encode("a", allow_special=False) == [0]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[1]"], ids=["empty", "object", "bytes", "list"]
)
def test_an_unreadable_file_is_a_catalogue_error(data: bytes) -> None:
    with pytest.raises(OctavoError, match="OCT-1203"):
        Tokenizer.from_json(data)
