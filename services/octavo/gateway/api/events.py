"""Server-sent events. A plain chunk is a ready template in which only the text is escaped.

Each choice has one last chunk, with its finish reason, which is null in all others; then, if
asked for, comes one usage chunk without choices, then DONE. Comments are the only heartbeat.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import msgspec

from octavo.gateway.api.errors import error_object
from octavo.gateway.api.logprobs import LegacyLogprobs, Position, chat_logprobs
from octavo.gateway.api.plan import Plan
from octavo.gateway.api.tally import Choice, Tally
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError

HOLD_S: Final = 10.0
"""The 200 of a stream waits so long for something better to say."""
KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"
OBJECTS: Final = {"chat": "chat.completion.chunk", "completions": "text_completion"}

_encode = msgspec.json.Encoder().encode


class Events:
    """The events of one answer."""

    def __init__(self, plan: Plan, tally: Tally) -> None:
        self._plan = plan
        self._tally = tally
        self._chat = plan.endpoint == "chat"
        common = _encode(
            {
                "id": plan.public_id,
                "object": OBJECTS[plan.endpoint],
                "created": plan.context.created,
                "model": plan.model.name,
                "system_fingerprint": plan.model.card.numerics_id,
            }
        )
        self._head = b"data: " + common[:-1]
        start = b'{"delta":{' if self._chat else b"{"
        self._starts = [
            b'%s,"choices":[{"index":%d,%s' % (self._head, i, start[1:])
            for i in range(plan.num_choices)
        ]
        self._text = b'"content":' if self._chat else b'"text":'
        self._close = b"}" if self._chat else b""
        self._usage = b',"usage":null' if plan.include_usage else b""
        self._plain_end = (
            self._close + b',"logprobs":null,"finish_reason":null}]' + self._usage + b"}\n\n"
        )
        self._detailed = plan.logprobs is not None or plan.return_token_ids or plan.continuous_usage

    def of(self, choice: Choice, delta: engine_pb2.Delta) -> bytes:
        """Returns the events of one delta, whole; nothing when it shows nothing."""
        shows_ids = self._detailed and delta.token_ids
        if not (delta.text or delta.finish_reason or shows_ids):
            return b""
        first = b""
        if not choice.shown:
            choice.shown = True
            first = self._first(choice)
        start = self._starts[choice.index] + self._text + _encode(delta.text)
        if not (delta.finish_reason or self._detailed):
            return first + start + self._plain_end
        return b"".join((first, start, self._close, *self._details(choice, delta), b"}\n\n"))

    def last(self) -> bytes:
        """Returns what follows the last choice's last chunk."""
        if not self._plan.include_usage:
            return DONE
        usage, metrics = _encode(self._tally.usage()), _encode(self._tally.metrics())
        return b'%s,"choices":[],"usage":%s,"metrics":%s}\n\n%s' % (
            self._head,
            usage,
            metrics,
            DONE,
        )

    def error(self, error: OctavoError) -> bytes:
        """Returns the one event that says that the stream cannot go on."""
        return error_event(error)

    def _details(self, choice: Choice, delta: engine_pb2.Delta) -> list[bytes]:
        parts = [b',"logprobs":', self._logprobs(choice, delta)]
        parts += [b',"finish_reason":']
        if delta.finish_reason:
            stop_reason = _encode(choice.stop_reason)
            parts += [_encode(choice.finish_reason), b',"stop_reason":', stop_reason]
        else:
            parts += [b"null"]
        if self._plan.return_token_ids:
            parts += [b',"token_ids":', _encode(list(delta.token_ids))]
        parts += [b"}]"]
        if self._plan.continuous_usage:
            parts += [b',"usage":', _encode(self._tally.usage())]
        else:
            parts += [self._usage]
        return parts

    def _logprobs(self, choice: Choice, delta: engine_pb2.Delta) -> bytes:
        alternatives = self._plan.logprobs
        if alternatives is None or not delta.logprobs:
            return b"null"
        tokenizer = self._plan.model.tokenizer
        if self._chat:
            content = chat_logprobs(delta.logprobs, tokenizer, alternatives=alternatives)
            return _encode({"content": content, "refusal": None})
        legacy = LegacyLogprobs()
        choice.offset = legacy.extend(
            delta.logprobs, tokenizer, alternatives=alternatives, offset=choice.offset
        )
        return _encode(asdict(legacy))

    def _first(self, choice: Choice) -> bytes:
        """Returns what comes before a choice's first chunk: the role, or the prompt's echo."""
        prompt_ids = b""
        if self._plan.return_token_ids:
            ids = self._plan.prompt_ids(choice.prompt)
            prompt_ids = b',"prompt_token_ids":' + _encode(ids)
        start = self._starts[choice.index]
        ending = b',"finish_reason":null'
        if self._chat:
            role = b'"role":"assistant","content":""},"logprobs":null'
            return b"".join((start, role, ending, b"}]", prompt_ids, self._usage, b"}\n\n"))
        if not (self._plan.echoes or prompt_ids):
            return b""
        echo = self._plan.echoes[choice.prompt] if self._plan.echoes else ""
        logprobs = self._prompt_logprobs(choice, self._tally.prompt_positions[choice.prompt])
        shown = b'"text":' + _encode(echo) + b',"logprobs":' + logprobs
        return b"".join((start, shown, ending, prompt_ids, b"}]", self._usage, b"}\n\n"))

    def _prompt_logprobs(self, choice: Choice, positions: list[Position]) -> bytes:
        alternatives = self._plan.logprobs
        if alternatives is None or not self._plan.echoes or not positions:
            return b"null"
        legacy = LegacyLogprobs()
        choice.offset = legacy.extend_prompt(
            self._plan.prompt_ids(choice.prompt),
            positions,
            self._plan.model.tokenizer,
            alternatives=alternatives,
        )
        return _encode(asdict(legacy))


def error_event(error: OctavoError) -> bytes:
    """Returns the event after which nothing follows."""
    return b"data: " + _encode({"error": error_object(error)}) + b"\n\n"
