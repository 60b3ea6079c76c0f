"""`POST /v1/completions`: from the body to a plan, one generation for each prompt.

A prompt as text may hold control tokens: whoever uses this endpoint writes the whole prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

from octavo.gateway.api.chat import check_stream_options
from octavo.gateway.api.plan import Context, Plan, find_model, make_call
from octavo.gateway.api.sampling import check_ids, clamp, fill
from octavo.gateway.api.schema import RawCompletion, convert
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.fleet import Fleet
from octavo.v1 import engine_pb2
from octavo.v1.errors import CONTEXT_LENGTH_EXCEEDED, INVALID_VALUE, OctavoError
from octavo.v1.limits import MAX_PROMPTS
from octavo.v1.validation import validate_request

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's default for this endpoint."""


async def plan_completion(honoured: dict[str, Any], fleet: Fleet, context: Context) -> Plan:
    """Returns the plan; raises OctavoError for what cannot be served.

    Lets others run between two prompts: a thousand long ones take a second.
    """
    body = convert(honoured, RawCompletion)
    options = check_stream_options(body)
    model = find_model(fleet, body.model)
    prompts: list[list[int]] = []
    requests: list[engine_pb2.GenerateRequest] = []
    for ids in prompts_of(body, model):
        prompts.append(ids)
        requests.append(_request(body, ids, model, context))
        await asyncio.sleep(0)
    clamped = [
        clamp(request, _wanted(body), param="max_tokens", model=model)
        for request in requests
        if not request.score_only
    ]
    clamped_to = min((room for room in clamped if room is not None), default=None)
    if len(requests) > 1:  # none may start before all are known to be sound
        for request in requests:
            validate_request(request, model.capacity)
            await asyncio.sleep(0)
    calls = tuple(
        make_call(
            context,
            model,
            request,
            endpoint="completions",
            clamped=clamped_to is not None,
            first=index == 0,
        )
        for index, request in enumerate(requests)
    )
    return Plan(
        endpoint="completions",
        context=context,
        model=model,
        calls=calls,
        n=body.n,
        stream=body.stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        logprobs=body.logprobs,
        prompt_logprobs=body.prompt_logprobs is not None,
        return_token_ids=body.return_token_ids,
        echoes=_echoes(body, prompts, model) if body.echo else (),
        clamped_to=clamped_to,
    )


def prompts_of(body: RawCompletion, model: ServedModel) -> Iterator[list[int]]:
    """Yields the ids of each prompt: text, texts, ids, or lists of ids."""
    prompt = body.prompt
    if isinstance(prompt, str):
        yield encode_prompt(model, prompt, special=body.add_special_tokens)
        return
    if not prompt:
        raise _invalid("prompt", "is empty")
    # More than so many can only be ids: millions of them need not be looked at.
    only_ids = isinstance(prompt[0], int) and len(prompt) > MAX_PROMPTS
    if only_ids or all(isinstance(p, int) for p in prompt):
        yield _prompt_ids("prompt", prompt, model)
        return
    if len(prompt) > MAX_PROMPTS:
        raise _invalid("prompt", f"has more than {MAX_PROMPTS} prompts")
    for index, one in enumerate(prompt):
        if isinstance(one, str):
            ids = encode_prompt(model, one, special=body.add_special_tokens)
            _check_length(f"prompt[{index}]", ids, model)  # before the next is encoded
            yield ids
        elif isinstance(one, list):
            yield _prompt_ids(f"prompt[{index}]", one, model)
        else:
            raise _invalid(f"prompt[{index}]", "must be text or a list of token ids")


def encode_prompt(model: ServedModel, text: str, *, special: bool) -> list[int]:
    """Returns a plain prompt's ids, after the token that begins a text if the model uses one.

    Raises:
        OctavoError: CONTEXT_LENGTH_EXCEEDED for a text that need not be encoded to see it.
    """
    model.tokenizer.check_length(text, model.capacity.max_model_len, param="prompt")
    ids = model.tokenizer.encode(text, allow_special=True)
    if special and model.card.HasField("bos_token_id"):
        ids = [model.card.bos_token_id, *ids]
    return ids


def _request(
    body: RawCompletion, ids: list[int], model: ServedModel, context: Context
) -> engine_pb2.GenerateRequest:
    request = engine_pb2.GenerateRequest()
    request.token_ids.ids.extend(ids)
    fill(
        request,
        body,
        model,
        read_timeout_ms=context.read_timeout_ms,
        fairness_key=context.fairness_key,
    )
    request.score_only = _wanted(body) == 0 and body.echo
    if body.logprobs is not None:
        request.logprobs = body.logprobs
        if body.echo:
            request.prompt_logprobs = max(body.logprobs, body.prompt_logprobs or 0)
    return request


def _wanted(body: RawCompletion) -> int:
    return DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _echoes(body: RawCompletion, prompts: list[list[int]], model: ServedModel) -> tuple[str, ...]:
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return tuple(
        text if isinstance(text, str) else model.tokenizer.decode(ids, skip_special=False)
        for text, ids in zip(given if len(given) == len(prompts) else prompts, prompts, strict=True)
    )


def _prompt_ids(param: str, ids: Sequence[object], model: ServedModel) -> list[int]:
    """Returns the ids of a prompt; looks at none of them when there are too many."""
    _check_length(param, ids, model)
    return check_ids(param, ids, model.capacity.vocab_size)


def _check_length(param: str, ids: Sequence[object], model: ServedModel) -> None:
    limit = model.capacity.max_model_len
    if len(ids) > limit:
        raise OctavoError(CONTEXT_LENGTH_EXCEEDED, param=param, limit=limit, tokens=len(ids))


def _invalid(param: str, reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param=param, reason=reason)
