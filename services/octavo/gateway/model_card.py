"""Reads an engine's card and files and makes a ServedModel of them.

Files are taken only with the announced length and digest. Engines of one model share tokenizer
and template: they are kept by digest for as long as one of them is served.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from hashlib import blake2b
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from octavo.gateway.endpoints import ServedModel
from octavo.gateway.link import Inbound, LinkLostError
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.env import Env
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import DIGEST_BYTES
from octavo.v1.errors import MODEL_UNREADABLE, OctavoError
from octavo.v1.validation import Capacity

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"

MAX_FILE_BYTES = 64 * 1024 * 1024
"""The largest tokenizer of a public model is 35 MB."""


async def read_card(stream: Inbound) -> tuple[engine_pb2.ModelCard, dict[str, bytes]]:
    """Reads a card stream to its end; raises LinkLostError when it breaks or does not add up."""
    card: engine_pb2.ModelCard | None = None
    files: dict[str, bytearray] = {}
    sizes: dict[str, int] = {}
    while (data := await stream.recv()) is not None:
        try:
            chunk = engine_pb2.CardChunk.FromString(data)
        except DecodeError as error:
            raise LinkLostError("a piece of the card is not a message") from error
        if chunk.WhichOneof("part") == "card":
            card = chunk.card
            sizes = {f.name: f.size_bytes for f in card.files}
            files = {name: bytearray() for name in sizes}
        elif chunk.file.name not in files:
            raise LinkLostError(f"the card does not list {chunk.file.name!r}")
        else:
            content = files[chunk.file.name]
            content += chunk.file.data
            if len(content) > min(sizes[chunk.file.name], MAX_FILE_BYTES):
                raise LinkLostError(f"{chunk.file.name} is longer than the card says")
    if card is None:
        raise LinkLostError("the card stream had no card")
    for file in card.files:
        if blake2b(files[file.name], digest_size=DIGEST_BYTES).digest() != file.blake2b:
            raise LinkLostError(f"{file.name} was damaged on its way")
    return card, {name: bytes(content) for name, content in files.items()}


class ModelLoader:
    """Makes served models, with one tokenizer and one template for each distinct file in use."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._tokenizers: MutableMapping[bytes, Tokenizer] = WeakValueDictionary()
        self._templates: MutableMapping[tuple[str, str, str], ChatTemplate] = WeakValueDictionary()

    def build(self, card: engine_pb2.ModelCard, files: dict[str, bytes]) -> ServedModel:
        """Returns the model under its canonical name.

        Raises:
            OctavoError: MODEL_UNREADABLE for a tokenizer or template that is none.
            LinkLostError: the card lacks a tokenizer.
        """
        if TOKENIZER_FILE not in files:
            raise LinkLostError(f"the card has no {TOKENIZER_FILE}")
        digest = blake2b(files[TOKENIZER_FILE], digest_size=DIGEST_BYTES).digest()
        tokenizer = self._tokenizers.get(digest)
        if tokenizer is None:
            tokenizer = self._tokenizers[digest] = Tokenizer.from_json(files[TOKENIZER_FILE])
        return ServedModel(
            name=card.model,
            card=card,
            tokenizer=tokenizer,
            template=self._template(card, _text(files.get(TEMPLATE_FILE, b"")), tokenizer),
            capacity=Capacity.of(card),
        )

    def _template(
        self, card: engine_pb2.ModelCard, source: str, tokenizer: Tokenizer
    ) -> ChatTemplate | None:
        if not source:
            return None
        bos = tokenizer.token_text(card.bos_token_id) if card.HasField("bos_token_id") else ""
        eos = tokenizer.token_text(card.eos_token_ids[0]) if card.eos_token_ids else ""
        key = (source, bos, eos)
        template = self._templates.get(key)
        if template is None:
            template = ChatTemplate(source, bos_token=bos, eos_token=eos, env=self._env)
            self._templates[key] = template
        return template


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise OctavoError(MODEL_UNREADABLE, path=TEMPLATE_FILE, reason=str(error)) from error
