"""Prompts of direct callers: text and messages become token ids, as the gateway would do it."""

from __future__ import annotations

from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.errors import INVALID_VALUE, UNSUPPORTED_PARAMETER, OctavoError
from octavo.v1.limits import CHAT_ROLES


class PromptEncoder:
    """Tokenises prompts with the model's own tokenizer and template.

    Args:
        tokenizer: the model's.
        template: the model's chat template; None refuses messages.
        bos_token_id: put before plain text when the model wants one.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, bos_token_id: int | None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._bos = [] if bos_token_id is None else [bos_token_id]

    def encode(self, proto: engine_pb2.GenerateRequest) -> bool:
        """Replaces text or messages of `proto` by ids; returns whether there was anything to do.

        Control tokens in callers' text stay plain text. Raises OctavoError for an empty prompt or
        messages without a template.
        """
        kind = proto.WhichOneof("prompt")
        if kind == "token_ids":
            return False
        if kind == "text":
            ids = self._bos + self._tokenizer.encode(proto.text, allow_special=False)
        elif kind == "messages":
            ids = self._encode_messages(proto.messages)
        else:
            raise OctavoError(INVALID_VALUE, param="prompt", reason="is missing")
        proto.token_ids.ids.extend(ids)  # selects this member of the oneof
        return True

    def encode_prefix(self, proto: engine_pb2.PinPrefixRequest) -> engine_pb2.GenerateRequest:
        """Returns a request for what requests are to begin with, as ids.

        Messages are rendered without the beginning of an answer, since others may follow. Raises
        OctavoError as `encode` does.
        """
        request = engine_pb2.GenerateRequest(cache_salt=proto.cache_salt)
        kind = proto.WhichOneof("prefix")
        if kind == "messages":
            ids = self._encode_messages(proto.messages, open_answer=False)
            request.token_ids.ids.extend(ids)
            return request
        if kind == "token_ids":
            request.token_ids.CopyFrom(proto.token_ids)
        elif kind == "text":
            request.text = proto.text
        self.encode(request)
        return request

    def _encode_messages(
        self, chat: engine_pb2.ChatMessages, *, open_answer: bool = True
    ) -> list[int]:
        if self._template is None:
            raise OctavoError(
                UNSUPPORTED_PARAMETER, param="messages", reason="the model has no chat template"
            )
        for message in chat.messages:
            if message.role not in CHAT_ROLES:
                reason = f"role must be one of {', '.join(CHAT_ROLES)}"
                raise OctavoError(INVALID_VALUE, param="messages", reason=reason)
        messages: list[dict[str, object]] = [
            {"role": m.role, "content": m.content} for m in chat.messages
        ]
        if not messages:
            raise OctavoError(INVALID_VALUE, param="messages", reason="is empty")
        return self._template.encode(
            self._tokenizer, messages, add_generation_prompt=open_answer, kwargs={}
        )
