"""The answer in one piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from octavo.gateway.api.logprobs import LegacyLogprobs, chat_logprobs, prompt_logprobs
from octavo.gateway.api.plan import Plan
from octavo.gateway.api.tally import Choice, Tally

OBJECTS: Final = {"chat": "chat.completion", "completions": "text_completion"}


def whole_answer(plan: Plan, tally: Tally, metrics: Mapping[str, float]) -> dict[str, object]:
    """Returns the body of an answer that is complete."""
    make = _chat_choice if plan.endpoint == "chat" else _text_choice
    answer: dict[str, object] = {
        "id": plan.public_id,
        "object": OBJECTS[plan.endpoint],
        "created": plan.context.created,
        "model": plan.model.name,
        "system_fingerprint": plan.model.card.numerics_id,
        "choices": [make(plan, tally, choice) for choice in tally.choices],
        "usage": tally.usage(),
        "metrics": metrics,
    }
    if plan.endpoint == "chat":
        answer.update(_prompt_parts(plan, tally, 0))
    return answer


def _chat_choice(plan: Plan, tally: Tally, choice: Choice) -> dict[str, object]:  # noqa: ARG001
    logprobs: dict[str, object] | None = None
    if plan.logprobs is not None:
        content = chat_logprobs(choice.positions, plan.model.tokenizer, alternatives=plan.logprobs)
        logprobs = {"content": content, "refusal": None}
    text = "".join(choice.text)
    return {
        "index": choice.index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": logprobs,
        **_ending(plan, choice),
    }


def _text_choice(plan: Plan, tally: Tally, choice: Choice) -> dict[str, object]:
    logprobs: LegacyLogprobs | None = None
    text = "".join(choice.text)
    if plan.echoes:
        text = plan.echoes[choice.prompt] + text
    if plan.logprobs is not None:
        logprobs = LegacyLogprobs()
        tokenizer, alternatives = plan.model.tokenizer, plan.logprobs
        positions = tally.prompt_positions[choice.prompt]
        offset = 0
        if plan.echoes and positions:
            ids = plan.prompt_ids(choice.prompt)
            offset = logprobs.extend_prompt(ids, positions, tokenizer, alternatives=alternatives)
        logprobs.extend(choice.positions, tokenizer, alternatives=alternatives, offset=offset)
    return {
        "index": choice.index,
        "text": text,
        "logprobs": None if logprobs is None else asdict(logprobs),
        **_ending(plan, choice),
        **_prompt_parts(plan, tally, choice.prompt),
    }


def _ending(plan: Plan, choice: Choice) -> dict[str, object]:
    ending: dict[str, object] = {
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if plan.return_token_ids:
        ending["token_ids"] = choice.token_ids
    return ending


def _prompt_parts(plan: Plan, tally: Tally, prompt: int) -> dict[str, object]:
    parts: dict[str, object] = {}
    if plan.prompt_logprobs:
        parts["prompt_logprobs"] = prompt_logprobs(
            tally.prompt_positions[prompt], plan.model.tokenizer
        )
    if plan.return_token_ids:
        parts["prompt_token_ids"] = plan.prompt_ids(prompt)
    return parts
