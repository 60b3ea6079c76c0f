"""The tokenizer made from GGUF metadata equals the ones that transformers makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.models.tiny_model import ALPHABET, MERGES, TOKENS, write_gguf
from tokenizers import Tokenizer, pre_tokenizers

from octavo.engine.models.checkpoint import open_checkpoint
from octavo.engine.models.resolve import resolve
from octavo.v1.errors import OctavoError

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "It's we'll I'D they'Ve don't",
    "12345 and 3.14159, 1,000,000 or ½ ² ١٢٣",
    "def f(x):\n    return x ** 2  # comment\n\n\n\tpass\r\n",
    "Größe naïve cafe\u0301 Ångström ﬁ",
    "中文没有空格 日本語テキスト 한국어",
    "مرحبا بالعالم שלום नमस्ते",
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 emoji\u200b zero width",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>x<file_sep>y",
    "a\u0000b\u0007\x1b[0m",
    "https://example.com/a?b=c&d=%20e#f",
    "x" * 300,
    "\n" * 17 + " " * 33 + "\t" * 5,
    '{"key": [1, 2, {"nested": null}], "s": "\\u00e9"}',
]


@pytest.fixture(scope="module")
def ours() -> Tokenizer:
    return Tokenizer.from_str(open_checkpoint(resolve("smollm2")).tokenizer_json.decode())


@pytest.fixture(scope="module")
def theirs() -> Tokenizer:
    """transformers' conversion, mended: it drops the split of digits that "smollm" stands for."""
    path = resolve("smollm2")
    converted = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend: Tokenizer = converted.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return backend


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_smollm2_encodes_as_transformers(ours: Tokenizer, theirs: Tokenizer, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids, skip_special_tokens=False) == text


@settings(max_examples=150)
@given(text=st.text(max_size=80))
def test_any_text_encodes_as_transformers(ours: Tokenizer, theirs: Tokenizer, text: str) -> None:
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    # SmolLM2 has no tokens for some rare bytes and drops them
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    if {*"".join(piece for piece, _ in pieces)} <= ours.get_vocab().keys():
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_control_tokens_are_special_and_whole(ours: Tokenizer) -> None:
    added = ours.get_added_tokens_decoder()
    assert added[1].content == "<|im_start|>"
    assert added[1].special
    assert ours.encode("<|im_start|>", add_special_tokens=False).ids == [1]
    assert ours.decode([1, 2], skip_special_tokens=True) == ""
    assert ours.get_vocab_size() == 49152


def test_nothing_is_added_to_a_text(ours: Tokenizer) -> None:
    assert ours.encode("a").ids == ours.encode("a", add_special_tokens=False).ids


def test_user_defined_tokens_are_whole_and_shown(tmp_path: Path) -> None:
    made = open_checkpoint(write_gguf(tmp_path / "m.gguf")).tokenizer_json
    tokenizer = Tokenizer.from_str(made.decode())
    ids = tokenizer.encode("<tool>the", add_special_tokens=False).ids
    assert ids == [TOKENS.index("<tool>"), TOKENS.index("the")]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool>the"


def _tokens(path: Path, pre: str, text: str) -> list[str]:
    made = open_checkpoint(write_gguf(path / "m.gguf", pre=pre)).tokenizer_json
    tokens: list[str] = Tokenizer.from_str(made.decode()).encode(text).tokens
    return tokens


@pytest.mark.parametrize(
    ("pre", "tokens"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("gpt-2", ["123", "4"]),
        ("default", ["123", "4"]),
        ("llama-bpe", ["123", "4"]),
    ],
)
def test_digits_split_as_the_family_does(tmp_path: Path, pre: str, tokens: list[str]) -> None:
    assert _tokens(tmp_path, pre, "1234") == tokens


def test_qwen2_equals_transformers(tmp_path: Path) -> None:
    made = open_checkpoint(write_gguf(tmp_path / "m.gguf", pre="qwen2")).tokenizer_json
    vocab = {token: i for i, token in enumerate(TOKENS)}
    merges: list[Any] = [tuple(merge.split(" ")) for merge in MERGES]
    end = "<|end|>"
    theirs = transformers.Qwen2Tokenizer(
        vocab=vocab, merges=merges, unk_token=end, eos_token=end, pad_token=end
    )
    ours = Tokenizer.from_str(made.decode())
    for text in TEXTS:
        wanted = theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == wanted, text


def test_llama3_splits_as_its_tokenizer_file(tmp_path: Path) -> None:
    """The split of Meta's tokenizer.json: contractions, words with one sign, three digits."""
    path = write_gguf(tmp_path / "m.gguf", pre="llama-bpe")
    made = json.loads(open_checkpoint(path).tokenizer_json)
    assert made["model"]["ignore_merges"] is True
    pattern = made["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    assert pattern == (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    assert _tokens(tmp_path, "llama-bpe", " the.the") == ["Ġthe", ".", "the"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("tokenizer.ggml.pre", "tekken", "its text split is 'tekken'; known: default"),
        ("tokenizer.ggml.model", "llama", "its tokenizer is 'llama'; only byte-level BPE"),
        ("tokenizer.ggml.tokens", ALPHABET * 2, "different tokens"),
        ("tokenizer.ggml.merges", ["a b"], "merge 'a b' is not of two tokens that make one"),
        ("tokenizer.ggml.merges", ["a"], "merge 'a' is not"),
        ("tokenizer.ggml.token_type", [1], "does not give each token a known type"),
        ("tokenizer.ggml.eos_token_id", 100_000, "no token id below"),
    ],
)
def test_what_is_not_known_is_refused(
    tmp_path: Path, key: str, value: str | int | list[Any], reason: str
) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0].pop(key)
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)

    with pytest.raises(OctavoError) as caught:
        open_checkpoint(write_gguf(tmp_path / "m.gguf", edit=edit))
    assert reason in caught.value.message
