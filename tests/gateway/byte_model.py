"""The fake model: a byte tokenizer with a chat template, and tokens that are a pure function."""

from __future__ import annotations

import json
from collections.abc import Iterable

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The 256 characters with which byte-level BPE writes bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(shifted)) for b in range(256)]


def tokenizer_json() -> bytes:
    """A byte tokenizer with three control tokens: id = byte, control tokens from 256 on."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = True
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": 256 + i,
                    "content": text,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for i, text in enumerate(SPECIALS)
            ],
            "normalizer": None,
            "pre_tokenizer": level,
            "post_processor": None,
            "decoder": level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {c: i for i, c in enumerate(byte_alphabet())}
                | {text: 256 + i for i, text in enumerate(SPECIALS)},
                "merges": [],
            },
        }
    ).encode()


def token_at(prompt: Iterable[int], seed: int, choice: int, position: int) -> int:
    """The token that the fake model draws: a lower-case letter."""
    return ord("a") + (sum(prompt) + seed + choice * 7 + position) % 26
