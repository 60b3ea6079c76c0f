"""The chat client's side of the API: one streamed answer, its errors, its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import msgspec

from octavo.v1 import common_pb2
from octavo.v1.errors import (
    BAD_USAGE,
    CATALOGUE,
    ENDPOINT_UNREACHABLE,
    ENGINE_FAILURE,
    INTERNAL,
    MODEL_LOADING,
    OctavoError,
)

_TIMEOUT = httpx.Timeout(10.0, read=120.0)
"""An answer may think, but a stream sends a heartbeat every few seconds."""
_EXPLAINING = ("x-octavo-route", "x-octavo-cached-tokens", "x-octavo-clamped", "x-request-id")

Message = Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Answer:
    """What is known of an answer besides its text."""

    finish_reason: str = ""
    usage: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, object] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Row(msgspec.Struct):
    """Our own addition to OpenAI's error body."""

    code: str = ""
    help: str = ""


class _ErrorBody(msgspec.Struct):
    message: str = ""
    code: str | int | None = None
    param: str | None = None
    octavo: _Row = msgspec.field(default_factory=_Row)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, object] | None = None
    metrics: dict[str, object] | None = None
    error: _ErrorBody | None = None


class _Models(msgspec.Struct):
    class Model(msgspec.Struct):
        id: str

    class Status(msgspec.Struct):
        """Our own addition to OpenAI's list."""

        stage: str = "no model is served"
        eta_ms: int = 0

    data: list[Model] = []
    status: Status = msgspec.field(default_factory=Status)


class ChatClient:
    """Talks to one endpoint with the OpenAI protocol; raises BAD_USAGE for what is no URL."""

    def __init__(self, url: str) -> None:
        checked = _checked(url)
        self._url = str(checked.copy_with(userinfo=b""))
        """For people, without a password."""
        self._http = httpx.Client(base_url=checked, timeout=_TIMEOUT, trust_env=False)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def first_model(self) -> str:
        """Returns the first served name; raises OctavoError when there is none yet."""
        try:
            response = self._http.get("/v1/models")
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if response.is_error:
            raise error_of(response.content, response.status_code)
        try:
            models = msgspec.json.decode(response.content, type=_Models)
        except msgspec.DecodeError as error:
            raise error_of(response.content, response.status_code) from error
        if not models.data:
            status = models.status
            raise OctavoError(MODEL_LOADING, stage=status.stage, retry_after_ms=status.eta_ms)
        return models.data[0].id

    def stream(
        self,
        model: str,
        messages: list[Message],
        answer: Answer,
        on_event: Callable[[str], None] | None = None,
    ) -> Iterator[str]:
        """Yields pieces of text and fills in `answer`.

        Raises:
            OctavoError: the request was refused, or the stream carried an error or was cut.
        """
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    raise error_of(response.read(), response.status_code)
                answer.headers = {k: v for k, v in response.headers.items() if k in _EXPLAINING}
                for data in events(response.iter_lines()):
                    if on_event is not None:
                        on_event(data)
                    if data == "[DONE]":
                        return
                    yield from _take(data, answer)
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.HTTPError as error:
            raise OctavoError(ENGINE_FAILURE) from error
        raise OctavoError(ENGINE_FAILURE)  # no [DONE]: the stream was cut

    def _unreachable(self, error: httpx.HTTPError) -> OctavoError:
        reason = str(error) or type(error).__name__
        return OctavoError(ENDPOINT_UNREACHABLE, url=self._url, reason=reason)


def _checked(text: str) -> httpx.URL:
    """Returns the URL; the reason repeats nothing of it, for it may hold a password."""
    try:
        url = httpx.URL(text)
        if url.scheme in ("http", "https") and url.host and (url.port or 0) < 1 << 16:
            return url
    except httpx.InvalidURL:
        pass
    raise OctavoError(
        BAD_USAGE, reason="the URL is not of the form http://HOST:PORT", command="octavo chat"
    )


def events(lines: Iterator[str]) -> Iterator[str]:
    """Yields the data of each server-sent event; comments are heartbeats and say nothing."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def _take(data: str, answer: Answer) -> Iterator[str]:
    chunk = msgspec.json.decode(data, type=_Chunk)
    if chunk.error is not None:
        raise _as_error(chunk.error, 500)
    answer.usage = chunk.usage or answer.usage
    answer.metrics = chunk.metrics or answer.metrics
    for choice in chunk.choices:
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        if choice.delta.content:
            yield choice.delta.content


def error_of(body: bytes, status: int) -> OctavoError:
    """Returns the error of a refused request; a body that is not ours counts by its status."""

    class Body(msgspec.Struct):
        error: _ErrorBody

    try:
        return _as_error(msgspec.json.decode(body, type=Body).error, status)
    except msgspec.DecodeError:
        text = body[:200].decode(errors="replace") or "no body"
        return _as_error(_ErrorBody(message=f"HTTP {status}: {text}"), status)


def _as_error(body: _ErrorBody, status: int) -> OctavoError:
    """Finds the row of the catalogue, for another server by OpenAI's code and the status."""
    named = [kind for kind in CATALOGUE.values() if kind.name == body.code]
    guess = next((kind for kind in named if kind.status == status), INTERNAL)
    error = OctavoError.from_proto(
        common_pb2.Error(
            code=body.octavo.code or guess.code, message=body.message, param=body.param or ""
        )
    )
    error.help = body.octavo.help or ("" if error.kind is INTERNAL else error.help)
    return error
