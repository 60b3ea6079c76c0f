"""`POST /v1/chat/completions`: from the body to a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.gateway.api.messages import normalise, template_arguments
from octavo.gateway.api.plan import Context, Plan, find_model, make_call
from octavo.gateway.api.sampling import clamp, fill
from octavo.gateway.api.schema import RawChat, RawGeneration, RawStreamOptions, convert
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.fleet import Fleet
from octavo.v1 import engine_pb2
from octavo.v1.errors import INVALID_VALUE, OctavoError


async def plan_chat(honoured: dict[str, Any], fleet: Fleet, context: Context) -> Plan:
    """Returns the plan; raises OctavoError for what cannot be served."""
    body = convert(honoured, RawChat)
    options = check_stream_options(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise _invalid("top_logprobs", "needs logprobs: true")
    model = find_model(fleet, body.model)
    request = engine_pb2.GenerateRequest()
    request.token_ids.ids.extend(
        prompt_of(
            model,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            kwargs=body.chat_template_kwargs,
        )
    )
    fill(
        request,
        body,
        model,
        read_timeout_ms=context.read_timeout_ms,
        fairness_key=context.fairness_key,
    )
    if body.logprobs:
        request.logprobs = body.top_logprobs or 0
    wanted, param = body.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        wanted, param = body.max_tokens, "max_tokens"
    clamped_to = clamp(request, wanted, param=param, model=model)
    call = make_call(context, model, request, endpoint="chat", clamped=clamped_to is not None)
    return Plan(
        endpoint="chat",
        context=context,
        model=model,
        calls=(call,),
        n=body.n,
        stream=body.stream,
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs is not None,
        return_token_ids=body.return_token_ids,
        clamped_to=clamped_to,
    )


def prompt_of(
    model: ServedModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool,
    kwargs: Mapping[str, Any],
) -> list[int]:
    """Returns the ids of a chat; raises OctavoError for what the model's template cannot take.

    Args:
        model: whose template and tokenizer to use.
        messages: as the client sent them.
        add_generation_prompt: None means yes, unless the final message is continued.
        continue_final_message: let the answer continue the last message.
        kwargs: further variables of the template.
    """
    if model.template is None:
        raise _invalid("messages", "this model has no chat template; use /v1/completions")
    if add_generation_prompt and continue_final_message:
        raise _invalid("continue_final_message", "excludes add_generation_prompt")
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    return model.template.encode(
        model.tokenizer,
        normalise(messages),
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        kwargs=template_arguments(kwargs),
        max_tokens=model.capacity.max_model_len,
    )


def check_stream_options(body: RawGeneration) -> RawStreamOptions:
    """Returns the options of the stream; without a stream there must be none."""
    if body.stream_options is not None and not body.stream:
        raise _invalid("stream_options", "needs stream: true")
    if body.stream and body.prompt_logprobs is not None:
        raise _invalid("prompt_logprobs", "excludes stream: true")
    return body.stream_options or RawStreamOptions()


def _invalid(param: str, reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param=param, reason=reason)
