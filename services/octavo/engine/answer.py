"""What tokens mean for the answer of a choice: its ids, its text, and whether it ends with them.

The order is EOS, stop id, stop string, length. Writes into the choice's request and the delta that
tells of it; knows nothing of steps and blocks.
"""

from __future__ import annotations

from octavo.engine.beam_search import Hypothesis
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.request import FinishReason, Request
from octavo.v1 import engine_pb2


def append(
    request: Request,
    detokenizer: Detokenizer,
    token: int,
    delta: engine_pb2.Delta,
    *,
    max_tokens: int,
) -> FinishReason | None:
    """Adds one token and tells whether it ends the choice.

    Args:
        request: the choice.
        detokenizer: its text.
        token: what was drawn.
        delta: gets the id and the text that is now certain.
        max_tokens: prompt and output tokens that the model can take.
    """
    stop = request.stop
    request.output_ids.append(token)
    delta.token_ids.append(token)
    may_stop = len(request.output_ids) >= stop.min_tokens
    is_eos = may_stop and token in stop.eos_token_ids
    is_stop_id = may_stop and not is_eos and token in stop.stop_token_ids
    visible = stop.include_in_output or not (is_eos or is_stop_id)
    delta.text += detokenizer.push(token, visible=visible)
    if is_stop_id:
        request.stop_reason = token
    elif not is_eos and detokenizer.matched is not None:
        request.stop_reason = detokenizer.matched
    if is_eos or request.stop_reason is not None:
        return FinishReason.STOP
    full = request.num_tokens >= max_tokens
    if not full and len(request.output_ids) < stop.max_tokens:
        return None
    # What is released now may still complete a stop string.
    delta.text += detokenizer.flush()
    request.stop_reason = detokenizer.matched
    return FinishReason.LENGTH if request.stop_reason is None else FinishReason.STOP


def fill(
    request: Request, detokenizer: Detokenizer, found: Hypothesis, delta: engine_pb2.Delta
) -> FinishReason:
    """Makes what a beam search has found the whole answer of a choice, and tells why it ends."""
    stop, last = request.stop, found.token_ids[-1]
    request.output_ids.extend(found.token_ids)
    delta.token_ids.extend(found.token_ids)
    is_eos = last in stop.eos_token_ids
    is_stop_id = not is_eos and last in stop.stop_token_ids
    ends = is_eos or is_stop_id
    shown = found.token_ids[:-1] if ends and not stop.include_in_output else found.token_ids
    delta.text = detokenizer.push_all(shown)
    if is_stop_id:
        request.stop_reason = last
    return FinishReason.STOP if ends else FinishReason.LENGTH
