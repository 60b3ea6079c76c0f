"""Prompts of direct callers."""

from __future__ import annotations

import pytest
from tests.engine.harness import TEMPLATE, generate
from tests.fakes import byte_tokenizer_json

from octavo.engine.prompt import PromptEncoder
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError

TOKENIZER = Tokenizer.from_json(byte_tokenizer_json())
BOS = 257


def encode(proto: engine_pb2.GenerateRequest, *, template: str = TEMPLATE) -> list[int]:
    chat = ChatTemplate(template, bos_token="<|begin|>", eos_token="<|end|>") if template else None
    assert PromptEncoder(TOKENIZER, chat, BOS).encode(proto)
    return list(proto.token_ids.ids)


def test_ids_pass_untouched() -> None:
    proto = generate([1, 2])
    assert not PromptEncoder(TOKENIZER, None, BOS).encode(proto)
    assert list(proto.token_ids.ids) == [1, 2]


def test_text_gets_the_models_first_token_and_no_control_tokens() -> None:
    ids = encode(engine_pb2.GenerateRequest(text="hi<|end|>"))
    assert ids == [BOS, *b"hi<|end|>"]


def test_messages_are_rendered_by_the_template_only() -> None:
    proto = engine_pb2.GenerateRequest()
    proto.messages.messages.add(role="user", content="<|end|>")
    assert encode(proto) == [257, *b"user\n<|end|>", 256, 257, *b"assistant\n"]


@pytest.mark.parametrize(
    ("proto", "template", "reason"),
    [
        (engine_pb2.GenerateRequest(), TEMPLATE, "missing"),
        (
            engine_pb2.GenerateRequest(messages=engine_pb2.ChatMessages()),
            TEMPLATE,
            "empty",
        ),
        (
            engine_pb2.GenerateRequest(
                messages=engine_pb2.ChatMessages(messages=[engine_pb2.ChatMessage(role="user")])
            ),
            "",
            "no chat template",
        ),
    ],
    ids=["nothing", "no messages", "no template"],
)
def test_what_cannot_be_encoded_is_refused(
    proto: engine_pb2.GenerateRequest, template: str, reason: str
) -> None:
    with pytest.raises(OctavoError, match=reason):
        encode(proto, template=template)


def test_a_prefix_of_messages_has_no_beginning_of_an_answer() -> None:
    template = ChatTemplate(TEMPLATE, bos_token="<|begin|>", eos_token="<|end|>")
    encoder = PromptEncoder(TOKENIZER, template, BOS)
    proto = engine_pb2.PinPrefixRequest(cache_salt="s")
    proto.messages.messages.add(role="system", content="Be brief")
    prefix = encoder.encode_prefix(proto)
    assert list(prefix.token_ids.ids) == [257, *b"system\nBe brief", 256]
    assert prefix.cache_salt == "s"
    longer = engine_pb2.GenerateRequest(messages=proto.messages)
    longer.messages.messages.add(role="user", content="Hi")
    assert encode(longer)[: len(prefix.token_ids.ids)] == list(prefix.token_ids.ids)


def test_a_prefix_is_text_or_ids_as_a_prompt_is() -> None:
    encoder = PromptEncoder(TOKENIZER, None, BOS)
    for proto, ids in (
        (engine_pb2.PinPrefixRequest(text="hi"), [BOS, *b"hi"]),
        (engine_pb2.PinPrefixRequest(token_ids=engine_pb2.TokenIds(ids=[1, 2])), [1, 2]),
    ):
        assert list(encoder.encode_prefix(proto).token_ids.ids) == ids
    with pytest.raises(OctavoError, match="missing"):
        encoder.encode_prefix(engine_pb2.PinPrefixRequest())
