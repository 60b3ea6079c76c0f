"""Logits to token ids, one choice at a time.

A draw is a pure function of the row's logits, the choice's parameters, its tokens so far and
(seed, position): no generator, no state between steps, no reduction over more than one row. So
neighbours, order, preemption and a move to another engine change nothing, bit by bit.

The order: raw logprobs, fp32, allowed ids, bad words, min_tokens, logit_bias, penalties, then
argmax, or temperature, min_p, top_k, top_p and the draw. A beam search gets the best tokens
instead, with their log-probabilities after the edits.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from octavo.engine.batch import NO_CANDIDATES, Logprobs, Sampled, SampleSpec
from octavo.engine.beam_search import Candidates
from octavo.engine.request import Request, SamplingParams
from octavo.v1.limits import LOGPROB_FLOOR

# SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
_GAMMA: Final = 0x9E3779B97F4A7C15
_ROUNDS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT: Final = 31
_WORD: Final = 2**64
_MANTISSA_BITS: Final = 52

_BUCKETS_PER_NAT: Final = 64
_NUM_BUCKETS: Final = 64 * 40
_NOT_FINITE: Final = Sampled(token_ids=(), finite=False)


class Sampler:
    """Draws the tokens of one step and reports logprobs where asked."""

    def __init__(self, vocab_size: int) -> None:
        self._all_ids = torch.arange(vocab_size)

    @torch.inference_mode()
    def sample(self, logits: Tensor, specs: Sequence[SampleSpec]) -> list[Sampled]:
        """Draws one token for each spec; row i of logits [rows, vocab] belongs to specs[i].

        A row with NaN or +inf, or with no possible token left, gets no token ids; its
        neighbours get theirs.
        """
        with _one_thread():
            logits = logits.float()
            # NaN and +inf survive the maximum; -inf alone is a token that cannot be drawn.
            usable: list[bool] = logits.amax(-1).isfinite().tolist()
            if all(_is_plain(spec.request.sampling) for spec in specs):
                tokens: list[int] = logits.argmax(-1).tolist()
                return [
                    Sampled(token_ids=(token,)) if ok else _NOT_FINITE
                    for token, ok in zip(tokens, usable, strict=True)
                ]
            return [
                self._sample_row(row, spec.request) if ok else _NOT_FINITE
                for row, spec, ok in zip(logits, specs, usable, strict=True)
            ]

    @torch.inference_mode()
    def prompt_logprobs(self, logits: Tensor, targets: Sequence[int], k: int) -> list[Logprobs]:
        """Returns, for each row of logits [rows, vocab], its target and the k best tokens."""
        with _one_thread():
            return [
                _logprobs(row.float(), target, k)
                for row, target in zip(logits, targets, strict=True)
            ]

    def _sample_row(self, row: Tensor, request: Request) -> Sampled:
        params = request.sampling
        if params.num_candidates:
            return Sampled(token_ids=(), candidates=_candidates(_edited(row, request), params))
        token = self._choose(_edited(row, request), params, position=len(request.output_ids))
        if token is None:
            return Sampled(token_ids=())
        if params.logprobs is None:
            return Sampled(token_ids=(token,))
        return Sampled(token_ids=(token,), logprobs=(_logprobs(row, token, params.logprobs),))

    def _choose(self, row: Tensor, params: SamplingParams, *, position: int) -> int | None:
        peak = float(row.amax())
        if not math.isfinite(peak):
            return None
        if params.is_greedy:
            return int(row.argmax())
        scaled = (row - peak) / params.temperature
        kept = _kept(scaled, params)
        if kept is None:
            kept = self._all_ids = self._all_ids.to(row.device)
            weights = scaled.double().exp()
        else:
            weights = scaled[kept].double().exp()
        # The exponential race: argmax(weight / Exp(1)) is argmax(logit + Gumbel) with one
        # logarithm less.
        winner = int((weights / exponential_noise(params.seed, position, kept)).argmax())
        return int(kept[winner])


def exponential_noise(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Returns Exp(1) noise (float64) that depends on seed, position and token id only.

    Token i takes the i-th output of a SplitMix64 generator that starts at a hash of seed and
    position, so any subset of the vocabulary can be asked for by itself.
    """
    start = _mix(_mix(seed % _WORD) + position)
    bits = token_ids * _signed(_GAMMA)
    bits += _signed(start + _GAMMA)
    for shift, factor in _ROUNDS:
        bits ^= _shifted(bits, shift)
        bits *= _signed(factor)
    bits ^= _shifted(bits, _LAST_SHIFT)
    # Uniform in (0, 1), symmetric and never an end; small values, which win, are the finest.
    uniform = _shifted(bits, 64 - _MANTISSA_BITS).double()
    uniform += 0.5
    uniform *= -(2.0**-_MANTISSA_BITS)
    return uniform.log1p_().neg_()


def _mix(word: int) -> int:
    word = (word + _GAMMA) % _WORD
    for shift, factor in _ROUNDS:
        word = (word ^ (word >> shift)) * factor % _WORD
    return word ^ (word >> _LAST_SHIFT)


def _signed(word: int) -> int:
    return (word + _WORD // 2) % _WORD - _WORD // 2


def _shifted(words: Tensor, shift: int) -> Tensor:
    """Shifts right as unsigned words; torch has no arithmetic on uint64."""
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def _is_plain(params: SamplingParams) -> bool:
    """Tells whether the argmax of the model's logits is all that is asked."""
    return (
        params.is_greedy
        and params.logprobs is None
        and not params.num_candidates
        and not params.allowed_token_ids
        and not params.bad_words
        and not params.min_tokens
        and not params.logit_bias
        and not _has_penalties(params)
    )


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )


def _edited(raw: Tensor, request: Request) -> Tensor:
    """Returns the row after masks, biases and penalties; raw itself stays as it is."""
    params = request.sampling
    row = raw.clone()
    if params.allowed_token_ids:
        allowed = _index(params.allowed_token_ids, row)
        row.fill_(-math.inf)
        row[allowed] = raw[allowed]
    if forbidden := [*_bad_word_ends(request), *_too_early(request)]:
        row[_index(forbidden, row)] = -math.inf
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        row.index_add_(0, _index(ids, row), torch.tensor(values, device=row.device))
    if _has_penalties(params):
        _penalise(row, request)
    return row


def _bad_word_ends(request: Request) -> Iterator[int]:
    """Yields the last token of each bad word of which everything else stands at the text's end."""
    words = request.sampling.bad_words
    if not words:
        return
    longest = max(map(len, words)) - 1
    tail = tuple(request.tokens(max(0, request.num_tokens - longest), request.num_tokens))
    for *beginning, last in words:
        if len(beginning) <= len(tail) and tail[len(tail) - len(beginning) :] == tuple(beginning):
            yield last


def _too_early(request: Request) -> tuple[int, ...]:
    params = request.sampling
    return params.masked_before_min if len(request.output_ids) < params.min_tokens else ()


def _penalise(row: Tensor, request: Request) -> None:
    params = request.sampling
    if params.repetition_penalty != 1.0:
        # Ids that occur twice are written twice with the same value.
        seen = _index((*request.prompt_ids, *request.output_ids), row)
        logits = row[seen]
        penalty = params.repetition_penalty
        row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)
    if request.output_ids and (params.frequency_penalty or params.presence_penalty):
        counts = Counter(request.output_ids)
        times = _index(counts.values(), row)
        row[_index(counts, row)] -= params.frequency_penalty * times + params.presence_penalty


def _index(ids: Iterable[int], row: Tensor) -> Tensor:
    # Seven times as fast as torch.tensor, which counts with prompts of thousands of tokens.
    return torch.frombuffer(array("q", ids), dtype=torch.int64).to(row.device)


def _kept(scaled: Tensor, params: SamplingParams) -> Tensor | None:
    """Returns the ids that min_p, top_k and top_p leave, or None when that is all of them.

    scaled [vocab] is (logit - largest logit) / temperature. Equal logits count by token id.
    """
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < scaled.numel():
        floor = max(floor, float(scaled.topk(params.top_k).values[-1]))
    ids = None
    if floor > -math.inf:
        ids = (scaled >= floor).nonzero().flatten()
        if 0 < params.top_k < len(ids):  # Several tokens share the last place.
            ids = _ranked(scaled, floor)[: params.top_k]
    if params.top_p < 1.0:
        nucleus = _nucleus(scaled if ids is None else scaled[ids], params.top_p)
        ids = nucleus if ids is None else ids[nucleus]
    return ids


def _nucleus(scaled: Tensor, top_p: float) -> Tensor:
    """Returns the indices of the smallest set of best tokens with top_p of the mass.

    Sorting a vocabulary takes milliseconds. Buckets of logits show where the cut falls, and
    only the one bucket around it is sorted.
    """
    weights = scaled.double().exp()
    bucket = (scaled * -_BUCKETS_PER_NAT).clamp_(max=_NUM_BUCKETS - 1).long()
    mass = bucket.bincount(weights).cumsum(0)
    target = top_p * float(mass[-1])
    cut = int((mass < target).sum())
    above = (bucket < cut).nonzero().flatten()
    edge = (bucket == cut).nonzero().flatten()
    edge = edge[scaled[edge].sort(descending=True, stable=True).indices]
    edge_mass = weights[edge].cumsum(0)
    if cut > 0:
        edge_mass += mass[cut - 1]
    return torch.cat((above, edge[: int((edge_mass < target).sum()) + 1]))


def _ranked(values: Tensor, floor: float) -> Tensor:
    """Returns the ids with a value of at least floor, the largest first, ties by id."""
    ids = (values >= floor).nonzero().flatten()
    return ids[values[ids].sort(descending=True, stable=True).indices]


def _candidates(row: Tensor, params: SamplingParams) -> Candidates:
    """Returns the best tokens of a row and their log-probabilities, ties by token id.

    All in float32, as `transformers` computes it: the sums of a beam search shall be the same.
    """
    peak = float(row.amax())
    if not math.isfinite(peak):
        return NO_CANDIDATES
    values = row.log_softmax(-1)
    k = min(params.num_candidates, row.numel())
    ids = _ranked(values, float(values.topk(k).values[-1]))[:k]
    best = values[ids]
    possible = best > -math.inf
    token_ids, logprobs = ids[possible].tolist(), best[possible].tolist()
    return Candidates(token_ids=tuple(token_ids), logprobs=tuple(logprobs))


def _logprobs(raw: Tensor, token: int, k: int) -> Logprobs:
    """Returns 1 + k entries: the token, then the k best ones, which may include it again."""
    best: list[int] = []
    if k > 0:
        k = min(k, raw.numel())
        best = _ranked(raw, float(raw.topk(k).values[-1]))[:k].tolist()
    peak = float(raw.amax())
    log_total = peak + math.log(float((raw.double() - peak).exp().sum()))
    before = (raw > raw[token]).sum() + (raw[:token] == raw[token]).sum()
    values: list[float] = raw[[token, *best]].double().sub_(log_total).tolist()
    return Logprobs(
        token_ids=(token, *best),
        # Written so that NaN becomes the floor as well.
        logprobs=tuple(value if value > LOGPROB_FLOOR else LOGPROB_FLOOR for value in values),
        ranks=(int(before) + 1, *range(1, len(best) + 1)),
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps every sum in one order on any number of cores.

    It costs nothing: a row is too small to gain from a second thread, and waiting for one on a
    busy machine takes longer than the whole step.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
