"""What the sampler must draw, written down without a thought for speed."""

import math
from collections import Counter

import numpy as np
import numpy.typing as npt

from octavo.engine.request import Request, SamplingParams

Row = npt.NDArray[np.float32]


def splitmix64(state: int) -> int:
    """One output of the generator of Steele, Lea and Flood."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def noise_of(seed: int, position: int, token_id: int) -> float:
    """Exponential noise of one token."""
    start = splitmix64(splitmix64(seed) + position)
    word = splitmix64(start + token_id * 0x9E3779B97F4A7C15)
    return -math.log1p(-((word >> 12) + 0.5) * 2.0**-52)


def edited(row: Row, chosen: Request) -> Row:
    """Masks, bias and penalties, one token at a time."""
    params, prompt, output = chosen.sampling, chosen.prompt_ids, chosen.output_ids
    out = row.copy()
    text = [*prompt, *output]
    for i in range(len(out)):
        if params.allowed_token_ids and i not in params.allowed_token_ids:
            out[i] = -np.inf
    for *beginning, last in params.bad_words:
        if text[len(text) - len(beginning) :] == beginning:
            out[last] = -np.inf
    if len(output) < params.min_tokens:
        for i in params.masked_before_min:
            out[i] = -np.inf
    for i, bias in params.logit_bias:
        out[i] += np.float32(bias)
    for i in set(text):
        penalty = np.float32(params.repetition_penalty)
        out[i] = out[i] / penalty if out[i] > 0 else out[i] * penalty
    for i, count in Counter(output).items():
        out[i] -= np.float32(
            np.float32(params.frequency_penalty) * np.float32(count)
            + np.float32(params.presence_penalty)
        )
    return out


def kept(scaled: Row, params: SamplingParams) -> list[int]:
    """Ids that the filters leave, best first."""
    ids = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    if params.min_p > 0:
        ids = [i for i in ids if scaled[i] >= np.float32(math.log(params.min_p))]
    if params.top_k > 0:
        ids = ids[: params.top_k]
    if params.top_p < 1:
        weights = [math.exp(scaled[i]) for i in ids]
        total, mass = math.fsum(weights), 0.0
        for count, weight in enumerate(weights, start=1):
            mass += weight
            if mass >= params.top_p * total:
                return ids[:count]
    return ids


def reference(row: Row, chosen: Request) -> int | None:
    """The token to draw; None when the row must fail."""
    params = chosen.sampling
    if np.isnan(row).any() or np.isposinf(row).any():
        return None
    out = edited(row, chosen)
    if not np.isfinite(out.max()):
        return None
    if params.is_greedy:
        return int(out.argmax())
    scaled = (out - out.max()) / np.float32(params.temperature)
    position = len(chosen.output_ids)
    gumbel = {
        i: float(scaled[i]) - math.log(noise_of(params.seed, position, i))
        for i in kept(scaled, params)
    }
    return max(gumbel, key=lambda i: gumbel[i])
