from __future__ import annotations

from tests.gateway.api.scripted import World
from tests.runtime.smollm2_files import tokenizer


def test_max_completion_tokens_is_the_newer_name() -> None:
    world = World()
    world.chat(max_completion_tokens=7, max_tokens=9)
    assert world.request.max_tokens == 7


def test_a_final_message_is_continued() -> None:
    world = World()
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Dear"}]
    world.chat(messages=messages, continue_final_message=True)
    text = tokenizer().decode(list(world.request.token_ids.ids), skip_special=False)
    assert text.endswith("<|im_start|>assistant\nDear")
