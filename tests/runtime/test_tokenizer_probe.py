from __future__ import annotations

from octavo.runtime.tokenizer_probe import probe_texts


def test_the_probe_has_hundreds_of_texts_and_the_control_tokens() -> None:
    texts = list(probe_texts(["<|im_end|>"]))
    assert len(texts) > 300
    assert any("<|im_end|>" in t for t in texts)
