"""A fleet and a dispatcher that do as a script says, and a client that speaks ASGI to the app."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from prometheus_client import CollectorRegistry
from tests.runtime.smollm2_files import chat_template, tokenizer

from octavo.gateway.admission import Admission
from octavo.gateway.app import App, build_app
from octavo.gateway.catalogue import Asleep
from octavo.gateway.config import GatewayConfig
from octavo.gateway.demand import Demand
from octavo.gateway.discovery import Service
from octavo.gateway.dispatch import Call
from octavo.gateway.endpoints import Readiness, ServedModel
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.once import Once
from octavo.gateway.routing import Route
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.env import SystemEnv
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import MODEL_LOADING, MODEL_NOT_FOUND, RECORD_UNAVAILABLE, OctavoError
from octavo.v1.validation import Capacity, validate_request

EOS = 2
STOP = common_pb2.FINISH_REASON_STOP
LENGTH = common_pb2.FINISH_REASON_LENGTH

Step = engine_pb2.Delta | OctavoError | float
Script = Callable[[Call], Iterable[Step]]


@functools.cache
def template_of_smollm2() -> ChatTemplate:
    return ChatTemplate(chat_template(), bos_token="", eos_token="<|im_end|>")


def made_model(name: str = "smollm2", *, template: bool = True, **card: Any) -> ServedModel:
    values: dict[str, Any] = {
        "model": "org/smollm2",
        "served_names": ["smollm2", "org/smollm2"],
        "identity": b"i" * 16,
        "numerics_id": "cpu-bf16-1",
        "exact": True,
        "block_tokens": 16,
        "num_blocks": 64,
        "max_model_len": 512,
        "vocab_size": 49152,
        "eos_token_ids": [EOS],
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "created_unix_s": 1_700_000_000,
        **card,
    }
    made = engine_pb2.ModelCard(**values)
    return ServedModel(
        name=name,
        card=made,
        tokenizer=tokenizer(),
        template=template_of_smollm2() if template else None,
        capacity=Capacity.of(made),
    )


def candidates(*pairs: tuple[int, float]) -> common_pb2.PositionLogprobs:
    return common_pb2.PositionLogprobs(
        candidates=[
            common_pb2.TokenLogprob(token_id=i, logprob=p, rank=r)
            for r, (i, p) in enumerate(pairs, 1)
        ]
    )


def says(text: str, *, finish: common_pb2.FinishReason.ValueType = STOP, cached: int = 0) -> Script:
    """A token a delta for each choice in turn, log-probabilities when asked for."""

    def script(call: Call) -> Iterable[Step]:
        request = call.request
        n = request.n or 1
        ids = [] if request.score_only else tokenizer().encode(text, allow_special=False)
        if finish == STOP and not request.score_only:
            ids.append(EOS)
        want = range(request.logprobs) if request.HasField("logprobs") else None
        if request.HasField("prompt_logprobs"):
            prompt = list(request.token_ids.ids)
            entries = [
                common_pb2.PositionLogprobs(),
                *(candidates((i, -1.5), (7, -0.5)) for i in prompt[1:]),
            ]
            # The engine computes a prompt in chunks.
            yield engine_pb2.Delta(prompt_logprobs=entries[:2])
            yield engine_pb2.Delta(prompt_logprobs=entries[2:])
        for position, token in enumerate(ids):
            last = position == len(ids) - 1
            for choice in range(n):
                delta = engine_pb2.Delta(choice=choice, position=position, token_ids=[token])
                if choice == position == 0:
                    delta.cached_tokens = cached
                if token != EOS:
                    delta.text = tokenizer().token_text(token)
                if want is not None:
                    others = ((9 + k, -1.0 - k) for k in want)
                    delta.logprobs.append(candidates((token, -0.25), *others))
                if last:
                    delta.finish_reason = finish
                    if choice == n - 1:
                        delta.usage.CopyFrom(_usage(request, len(ids) * n, cached))
                yield delta
        if not ids:
            yield engine_pb2.Delta(finish_reason=LENGTH, usage=_usage(request, 0, cached))

    return script


def _usage(request: engine_pb2.GenerateRequest, output: int, cached: int) -> engine_pb2.Usage:
    return engine_pb2.Usage(
        prompt_tokens=len(request.token_ids.ids),
        output_tokens=output,
        cached_tokens=cached,
        preemptions=1,
        queue_ms=1.5,
        prefill_ms=20.25,
        decode_ms=30.0,
    )


class ScriptedGeneration:
    def __init__(self, call: Call, steps: Iterable[Step]) -> None:
        self.id = call.id
        self.route = Route(
            engine="engine-a", hit_tokens=16, prompt_tokens=32, seconds=0.5, runner_up="engine-b"
        )
        self.closed = False
        self.failure: OctavoError | None = None
        self._steps = steps

    async def __aiter__(self) -> AsyncIterator[engine_pb2.Delta]:
        for step in self._steps:
            if isinstance(step, OctavoError):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step

    def fail(self, error: OctavoError) -> None:
        self.failure = self.failure or error

    async def aclose(self) -> None:
        self.closed = True


class ScriptedDispatcher:
    """Validates as the real one does, then follows the script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.generations: list[ScriptedGeneration] = []
        self.open_s = 0.0
        self.cancelled = 0
        self.refusals: list[tuple[str, str, str]] = []
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def refused(self, error: OctavoError, *, id: str, endpoint: str) -> None:
        self.refusals.append((error.kind.name, id, endpoint))

    async def open(self, call: Call) -> ScriptedGeneration:
        self.calls.append(call)
        validate_request(call.request, call.model.capacity)
        try:
            await asyncio.sleep(self.open_s)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        made = ScriptedGeneration(call, self.script(call))
        self.generations.append(made)
        return made


class ScriptedCatalogue:
    def __init__(self) -> None:
        self.sleepers: dict[str, Asleep] = {}

    def service_of(self, name: str) -> str:
        return self.sleepers[name].service.id if name in self.sleepers else ""

    def asleep(self) -> list[Asleep]:
        return list(self.sleepers.values())

    def asleep_as(self, name: str) -> Asleep | None:
        return self.sleepers.get(name)


class ScriptedFleet:
    """Names of the catalogue are held until `wake`."""

    def __init__(self, models: Sequence[ServedModel], demand: Demand) -> None:
        self.models = list(models)
        self.loading = False
        self.draining = False
        self.catalogue = ScriptedCatalogue()
        self.demand = demand

    def holds(self, service: str) -> bool:
        return any(a.service.id == service for a in self.catalogue.asleep())

    def sleep(self, name: str) -> None:
        service = Service(id=f"team/{name}", names=(name,), created_unix_s=1_700_000_000)
        asleep = Asleep(name=name, service=service, stage="there is no engine")
        self.catalogue.sleepers[name] = asleep

    def wake(self, name: str) -> None:
        self.demand.release(self.catalogue.sleepers.pop(name).service.id)

    def served(self) -> list[ServedModel]:
        return [] if self.loading else self.models

    def model(self, name: str) -> ServedModel:
        if self.loading:
            raise OctavoError(MODEL_LOADING, stage="weights", retry_after_ms=1500)
        for model in self.models:
            if model.name == name:
                return model
        served = ", ".join(m.name for m in self.models)
        raise OctavoError(
            MODEL_NOT_FOUND, param="model", model=name, served=served, closest="; did you mean x?"
        )

    def readiness(self) -> Readiness:
        if self.loading:
            return Readiness(ready=False, stage="loading: weights", eta_ms=1500)
        return Readiness(ready=True, stage="ready")


class ScriptedRecords:
    async def get(self, id: str) -> dict[str, object] | None:
        if id == "away":
            raise OctavoError(RECORD_UNAVAILABLE, reason="it is away", retry_after_ms=1000)
        return {"id": id, "state": "finished"} if id == "known" else None


@dataclass
class Response:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    parts: list[bytes] = field(default_factory=list)
    complete: bool = False

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def chunks(self) -> list[Any]:
        """The JSON of all events but DONE."""
        events = [e for e in self.body.decode().split("\n\n") if e.startswith("data: ")]
        return [json.loads(e[6:]) for e in events if e != "data: [DONE]"]


class World:
    """The app with a scripted fleet behind it."""

    def __init__(
        self, script: Script | None = None, *, models: Sequence[ServedModel] = (), **config: Any
    ) -> None:
        self.dispatcher = ScriptedDispatcher(script or says("Hello there"))
        settings = GatewayConfig(**config)
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.fleet = ScriptedFleet(
            models or [made_model(), made_model("org/smollm2")],
            Demand(hold_s=settings.hold_s, max_held=settings.max_held, metrics=self.metrics),
        )
        self.once = Once(
            cast("Any", self.dispatcher),
            None,
            metrics=self.metrics,
            env=SystemEnv(),
            ttl_s=settings.idempotency_ttl_s,
            grace_s=settings.idempotency_grace_s,
        )
        self.admission = Admission(
            max_requests=settings.max_requests,
            max_body_bytes_total=settings.max_body_bytes_total,
            metrics=self.metrics,
        )
        self.app: App = build_app(
            config=settings,
            admission=self.admission,
            fleet=cast("Any", self.fleet),
            dispatcher=cast("Any", self.dispatcher),
            once=self.once,
            records=cast("Any", ScriptedRecords()),
            env=SystemEnv(),
        )

    @property
    def request(self) -> engine_pb2.GenerateRequest:
        """What the last call asked of the engine."""
        return self.dispatcher.calls[-1].request

    def chat(self, text: str = "hi", *, headers: Mapping[str, str] = {}, **body: Any) -> Response:
        message = {"role": "user", "content": text}
        return self.post(
            "/v1/chat/completions",
            {"model": "smollm2", "messages": [message], **body},
            headers=headers,
        )

    def complete(self, prompt: Any = "Once", **body: Any) -> Response:
        return self.post("/v1/completions", {"model": "smollm2", "prompt": prompt, **body})

    def get(self, path: str, **more: Any) -> Response:
        return asyncio.run(self.ask("GET", path, b"", **more))

    def post(self, path: str, body: Any, **more: Any) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return asyncio.run(self.ask("POST", path, data, **more))

    async def ask(self, method: str, path: str, body: bytes, **more: Any) -> Response:
        """Sends a request; see `ask`."""
        return await ask(self.app, method, path, body, **more)


async def ask(
    app: App,
    method: str,
    path: str,
    body: bytes,
    *,
    headers: Mapping[str, str] | None = None,
    leaves: Callable[[Response], bool] = lambda _: False,
    leave_after_s: float | None = None,
    piece: int = 1 << 20,
) -> Response:
    """Sends a request to the app and collects the answer.

    Args:
        leaves: closes the connection when it is true of what has arrived.
        leave_after_s: closes it after this time.
        piece: bytes of the body in one message.
    """
    pieces = [body[i : i + piece] for i in range(0, len(body), piece)] or [b""]
    left = asyncio.Event()
    response = Response()
    if leave_after_s is not None:
        asyncio.get_running_loop().call_later(leave_after_s, left.set)

    async def receive() -> dict[str, Any]:
        if pieces:
            part = pieces.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(pieces)}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            for name, value in message["headers"]:
                assert name == name.lower()
                response.headers[name.decode()] = value.decode()
        else:
            response.parts.append(message.get("body", b""))
            response.complete = not message.get("more_body", False)
        if leaves(response):
            left.set()
        await asyncio.sleep(0)

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 5),
        "headers": [
            (k.lower().encode(), v.encode())
            for k, v in {"host": "localhost:8000", **(headers or {})}.items()
        ],
    }
    await app(scope, receive, send)
    return response
