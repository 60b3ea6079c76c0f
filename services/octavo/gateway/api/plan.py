"""What is left to do once a body has been understood: the calls, and how to show their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo.gateway.api.headers import Scope, client_label, fairness_key, header, read_timeout_ms
from octavo.gateway.api.parameters import Endpoint
from octavo.gateway.dispatch import Call
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.fleet import Fleet
from octavo.v1 import engine_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a request's headers say, and which parameters had no effect."""

    id: str
    """The request's identifier, unguessable."""
    created: int
    """Unix seconds."""
    ignored: tuple[str, ...] = ()
    client_label: str = ""
    traceparent: str = ""
    read_timeout_ms: int = 0
    fairness_key: str = ""
    waited_s: float = 0.0
    """How long it was held."""
    replayed: bool = False
    """The answer is an earlier request's."""

    @classmethod
    def of(
        cls,
        scope: Scope,
        *,
        id: str,
        created: int,
        ignored: tuple[str, ...],
        waited_s: float = 0.0,
    ) -> Context:
        """Reads the headers; raises INVALID_VALUE for one that cannot be honoured."""
        return cls(
            id=id,
            created=created,
            ignored=ignored,
            client_label=client_label(scope),
            traceparent=header(scope, b"traceparent"),
            read_timeout_ms=read_timeout_ms(scope),
            fairness_key=fairness_key(scope),
            waited_s=waited_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One HTTP request: a generation for each prompt, n choices for each generation."""

    endpoint: Endpoint
    context: Context
    model: ServedModel
    calls: tuple[Call, ...]
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: int | None
    """Alternatives per position; None shows no log-probabilities."""
    prompt_logprobs: bool
    """Show them in the shape of vLLM, whatever `echo` shows."""
    return_token_ids: bool
    echoes: tuple[str, ...] = ()
    """The prompts' texts; empty unless they are to be repeated."""
    clamped_to: int | None = None
    """What max_tokens was lowered to."""

    def under(self, *, id: str, created: int, replayed: bool) -> Plan:
        """Returns the plan as another request's, whose answer is given."""
        context = replace(self.context, id=id, created=created, replayed=replayed)
        return replace(self, context=context)

    @property
    def num_choices(self) -> int:
        """Choices of the answer."""
        return self.n * len(self.calls)

    @property
    def public_id(self) -> str:
        """The `id` of the answer."""
        return f"{'chatcmpl' if self.endpoint == 'chat' else 'cmpl'}-{self.context.id}"

    def prompt_ids(self, prompt: int) -> list[int]:
        """Returns a prompt's ids."""
        return list(self.calls[prompt].request.token_ids.ids)


def find_model(fleet: Fleet, name: str) -> ServedModel:
    """Returns the named model; without a name the only one there is.

    Raises:
        OctavoError: MODEL_NOT_FOUND, MODEL_LOADING or NO_ENGINE.
    """
    if name:
        return fleet.model(name)
    served: Mapping[tuple[str, bytes], ServedModel] = {
        (m.service, m.identity): m for m in reversed(fleet.served())
    }
    return next(iter(served.values())) if len(served) == 1 else fleet.model(name)


def make_call(
    context: Context,
    model: ServedModel,
    request: engine_pb2.GenerateRequest,
    *,
    endpoint: Endpoint,
    clamped: bool,
    first: bool = True,
) -> Call:
    """Returns the dispatcher's call; only the first of several has the request's own id."""
    return Call(
        model=model,
        request=request,
        id=context.id if first else "",
        client_label=context.client_label,
        ignored=context.ignored,
        clamped=clamped,
        endpoint=endpoint,
        traceparent=context.traceparent,
        waited_s=context.waited_s,
    )
