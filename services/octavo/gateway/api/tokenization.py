"""`/tokenize`, `/detokenize`, `/tokenizer_info`: for evaluators that load no tokenizer.

Shapes and defaults are those of vLLM's public interface.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from octavo.gateway.api.body import JsonObject, parse_body, read_body
from octavo.gateway.api.chat import prompt_of
from octavo.gateway.api.completions import encode_prompt
from octavo.gateway.api.plan import find_model
from octavo.gateway.api.sampling import check_count, check_ids
from octavo.gateway.api.schema import RawDetokenize, RawTokenize, convert
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.fleet import Fleet
from octavo.v1.errors import INVALID_VALUE, OctavoError

MAX_TOKENS: Final = 2**17
"""Ids that are turned into text at once, unless the model takes more."""


class Tokenization:
    """The three endpoints."""

    def __init__(self, fleet: Fleet, *, max_body_bytes: int) -> None:
        self._fleet = fleet
        self._max_body_bytes = max_body_bytes

    async def tokenize(self, request: Request) -> Response:
        """Returns the ids of a prompt or a chat."""
        raw = convert(await self._body(request), RawTokenize)
        model = find_model(self._fleet, raw.model)
        ids = _ids(raw, model)
        names = [model.tokenizer.token_name(i) for i in ids] if raw.return_token_strs else None
        return JSONResponse(
            {
                "count": len(ids),
                "max_model_len": model.card.max_model_len,
                "tokens": ids,
                "token_strs": names,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """Returns the text of ids, control tokens shown."""
        raw = convert(await self._body(request), RawDetokenize)
        model = find_model(self._fleet, raw.model)
        check_count("tokens", len(raw.tokens), max(MAX_TOKENS, model.capacity.max_model_len))
        ids = check_ids("tokens", raw.tokens, model.capacity.vocab_size)
        return JSONResponse({"prompt": model.tokenizer.decode(ids, skip_special=False)})

    async def info(self, request: Request) -> Response:
        """Returns what a tokenizer's configuration file would say."""
        model = find_model(self._fleet, request.query_params.get("model", ""))
        card, tokenizer = model.card, model.tokenizer
        eos = tokenizer.token_name(card.eos_token_ids[0]) if card.eos_token_ids else None
        bos = tokenizer.token_name(card.bos_token_id) if card.HasField("bos_token_id") else None
        return JSONResponse(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": bos,
                "eos_token": eos,
                "pad_token": eos,
                "unk_token": None,
                "add_bos_token": bos is not None,
                "model_max_length": card.max_model_len,
                "chat_template": model.template.source if model.template else None,
                "vocab_size": tokenizer.vocab_size,
                "special_tokens": [s.text for s in tokenizer.specials],
                "backend": tokenizer.backend,
            }
        )

    async def _body(self, request: Request) -> JsonObject:
        data = await read_body(request.scope, request.receive, limit=self._max_body_bytes)
        return {k: v for k, v in (await parse_body(data)).items() if v is not None}


def _ids(raw: RawTokenize, model: ServedModel) -> list[int]:
    if (raw.prompt is None) == (raw.messages is None):
        raise OctavoError(
            INVALID_VALUE, param="prompt", reason="give either prompt or messages, not both"
        )
    if raw.prompt is not None:
        return encode_prompt(model, raw.prompt, special=raw.add_special_tokens is not False)
    assert raw.messages is not None, "one of the two is there"
    ids = prompt_of(
        model,
        raw.messages,
        add_generation_prompt=raw.add_generation_prompt,
        continue_final_message=raw.continue_final_message,
        kwargs=raw.chat_template_kwargs,
    )
    if raw.add_special_tokens and model.card.HasField("bos_token_id"):
        return [model.card.bos_token_id, *ids]
    return ids
