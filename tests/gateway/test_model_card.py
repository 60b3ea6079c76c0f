import asyncio
from collections.abc import Sequence

import pytest
from tests.gateway.byte_model import tokenizer_json
from tests.gateway.fake_engine import FakeEngine

from octavo.gateway.link import LinkLostError
from octavo.gateway.model_card import ModelLoader, read_card
from octavo.runtime.env import SystemEnv
from octavo.v1 import engine_pb2
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError


class Replay:
    """A stream that was recorded."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = list(messages)

    async def recv(self) -> bytes | None:
        return self._messages.pop(0) if self._messages else None

    def close(self) -> None: ...


def chunks(engine: FakeEngine) -> list[engine_pb2.CardChunk]:
    pieces = [
        engine_pb2.CardChunk(file=engine_pb2.FilePiece(name=name, data=data[at : at + 1000]))
        for name, data in engine.files.items()
        for at in range(0, len(data), 1000)
    ]
    return [engine_pb2.CardChunk(card=engine.card), *pieces]


def read(messages: Sequence[engine_pb2.CardChunk | bytes]) -> dict[str, bytes]:
    raw = [m if isinstance(m, bytes) else m.SerializeToString() for m in messages]
    return asyncio.run(read_card(Replay(raw)))[1]


def test_pieces_become_whole_files() -> None:
    engine = FakeEngine()
    assert read(chunks(engine)) == engine.files


@pytest.mark.parametrize(
    "fault",
    ["no card", "lost piece", "changed byte", "too long", "unlisted", "garbage"],
)
def test_a_card_that_does_not_add_up_is_refused(fault: str) -> None:
    messages: list[engine_pb2.CardChunk | bytes] = [*chunks(FakeEngine())]
    piece = messages[2]
    assert isinstance(piece, engine_pb2.CardChunk)
    if fault == "no card":
        messages.clear()
    elif fault == "lost piece":
        del messages[2]
    elif fault == "changed byte":
        piece.file.data = b"X" + piece.file.data[1:]
    elif fault == "too long":
        messages.extend([piece] * 50)
    elif fault == "unlisted":
        piece.file.name = "model.pkl"
    else:
        messages[2] = b"\xff\xff\xff"
    with pytest.raises(LinkLostError):
        read(messages)


def test_the_model_can_tokenise_and_render() -> None:
    engine = FakeEngine()
    model = ModelLoader(SystemEnv()).build(engine.card, engine.files)
    assert model.template is not None
    ids = model.template.encode(model.tokenizer, [{"role": "user", "content": "hi"}], kwargs={})
    assert ids[0] == 257
    assert model.tokenizer.decode(ids, skip_special=True) == "user\nhi\nassistant\n"


def test_a_model_without_a_template_has_none() -> None:
    engine = FakeEngine(files={"tokenizer.json": tokenizer_json()})
    assert ModelLoader(SystemEnv()).build(engine.card, engine.files).template is None


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer.json": b"{}"},
        {"tokenizer.json": tokenizer_json(), "chat_template.jinja": b"{% for"},
        {"tokenizer.json": tokenizer_json(), "chat_template.jinja": b"\xff\xfe"},
    ],
    ids=["tokenizer", "template", "encoding"],
)
def test_unreadable_files_are_errors_of_the_catalogue(files: dict[str, bytes]) -> None:
    with pytest.raises(OctavoError) as caught:
        ModelLoader(SystemEnv()).build(FakeEngine().card, files)
    assert caught.value.kind is MODEL_UNREADABLE


def test_a_card_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(LinkLostError):
        ModelLoader(SystemEnv()).build(FakeEngine().card, {})
