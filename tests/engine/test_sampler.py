"""The sampler against a naive reference, and its independence of everything around a row."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.sampling_reference import Row, edited, noise_of, reference, splitmix64

from octavo.engine.batch import NO_CANDIDATES, Sampled, SampleSpec
from octavo.engine.request import Request, RequestId, SamplingParams, StopParams
from octavo.engine.sampler import Sampler, exponential_noise
from octavo.v1.block_hash import BlockHash
from octavo.v1.limits import LOGPROB_FLOOR, MAX_SEED

VOCAB = 97
LARGE_VOCAB = 49152
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A second thread of the test's own arithmetic only waits on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def request(
    params: SamplingParams, prompt: Sequence[int] = (1, 2), output: Sequence[int] = ()
) -> Request:
    return Request(
        id=RequestId(0),
        prompt_ids=tuple(prompt),
        sampling=params,
        stop=StopParams(max_tokens=100),
        arrival=0.0,
        hash_root=BlockHash(bytes(16)),
        output_ids=list(output),
    )


def sample(logits: torch.Tensor, requests: Sequence[Request]) -> list[Sampled]:
    return Sampler(logits.shape[-1]).sample(logits, [SampleSpec(request=r) for r in requests])


def token(row: torch.Tensor | Sequence[float], chosen: Request | SamplingParams) -> int:
    """The token drawn from one row."""
    logits = row if isinstance(row, torch.Tensor) else torch.tensor(row)
    one = chosen if isinstance(chosen, Request) else request(chosen)
    (sampled,) = sample(logits[None], [one])
    (drawn,) = sampled.token_ids
    return drawn


def random_rows(rows: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows * vocab)
    return torch.randn(rows, vocab, generator=generator) * scale


IDS = st.integers(0, VOCAB - 1)
FEW_IDS = st.lists(IDS, max_size=6)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-6]) | st.floats(0.01, 1.0),
    top_k=st.sampled_from([0, 0, 1, 5, VOCAB - 1, VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]) | st.floats(0.0, 1.0),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5, -2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -2.0]),
    seed=st.integers(0, MAX_SEED + 200),
    logit_bias=st.lists(
        st.tuples(IDS, st.sampled_from([-100.0, -1.0, 2.5, 100.0])), max_size=4
    ).map(tuple),
    bad_words=st.lists(st.lists(IDS, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    allowed_token_ids=st.just(()) | FEW_IDS.map(tuple),
    min_tokens=st.integers(0, 3),
    masked_before_min=FEW_IDS.map(tuple),
    logprobs=st.none() | st.integers(0, 3),
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Normal logits, in steps so coarse that many are equal, a few of them impossible."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    step = draw(st.sampled_from([1e-3, 0.25, 1.0, 20.0]))
    scale = draw(st.sampled_from([0.1, 3.0, 30.0]))
    row = (np.round(generator.normal(size=VOCAB) * scale / step) * step).astype(np.float32)
    for i in draw(st.lists(IDS, max_size=3)):
        row[i] = draw(st.sampled_from([-np.inf, 0.0, row.max()]))
    return row


@settings(max_examples=1000)
@given(row=rows(), params=PARAMS, prompt=st.lists(IDS, min_size=1, max_size=5), output=FEW_IDS)
def test_40_it_draws_what_the_definition_says(
    row: Row, params: SamplingParams, prompt: list[int], output: list[int]
) -> None:
    chosen = request(params, prompt, output)
    (sampled,) = sample(torch.from_numpy(row)[None], [chosen])
    wanted = reference(row, chosen)
    assert sampled.token_ids == (() if wanted is None else (wanted,))


# --- noise


def test_47_the_noise_is_splitmix64() -> None:
    # The first outputs of the published generator for the seed 0.
    gamma = 0x9E3779B97F4A7C15
    assert [splitmix64(0), splitmix64(gamma)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    drawn = exponential_noise(7, 3, torch.tensor([0, 1, 49151, 262143]))
    wanted = [noise_of(7, 3, i) for i in (0, 1, 49151, 262143)]
    assert drawn.tolist() == pytest.approx(wanted, rel=1e-14)


def test_noise_of_a_part_is_the_part_of_the_noise() -> None:
    everything = exponential_noise(5, 9, torch.arange(LARGE_VOCAB))
    for part in ([17], list(range(3, 300, 7)), [LARGE_VOCAB - 1, 0]):
        assert torch.equal(exponential_noise(5, 9, torch.tensor(part)), everything[part])


def test_noise_is_exponential_and_uncorrelated() -> None:
    noise = torch.stack([exponential_noise(1, p, torch.arange(1000)) for p in range(1000)])
    assert float(noise.mean()) == pytest.approx(1.0, abs=0.005)
    assert float(noise.var()) == pytest.approx(1.0, abs=0.02)
    assert float((noise < 1e-3).double().mean()) == pytest.approx(1e-3, rel=0.1)
    centred = noise - noise.mean()
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.roll((1, 1), (0, 1))):
        assert abs(float((centred * shifted).mean())) < 0.005


def test_tokens_come_with_their_probabilities() -> None:
    probabilities = [0.5, 0.25, 0.15, 0.07, 0.03]
    logits = torch.tensor(probabilities).log().expand(4000, -1)
    for params in (SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.999)):
        requests = [request(dataclasses.replace(params, seed=i)) for i in range(4000)]
        counts = Counter(s.token_ids[0] for s in sample(logits, requests))
        chi2 = sum((counts[i] - 4000 * p) ** 2 / (4000 * p) for i, p in enumerate(probabilities))
        assert chi2 < 18.5  # 0.1 % of 4 degrees of freedom


def test_47_seeds_differ_and_repeat() -> None:
    row = random_rows(1, scale=0.5)[0]
    drawn = [
        [token(row, request(SamplingParams(seed=seed), output=[0] * p)) for p in range(20)]
        for seed in (1, 2, 3, 4, 5, 1)
    ]
    assert len({tuple(run) for run in drawn}) == 5
    assert drawn[0] == drawn[5]
    assert all(len(set(run)) > 5 for run in drawn)


# --- independence


def mixed_requests() -> Iterator[Request]:
    """One of each kind of row."""
    kinds = [
        GREEDY,
        SamplingParams(seed=1),
        SamplingParams(seed=2, top_p=0.9, logprobs=5),
        SamplingParams(seed=3, top_k=50, top_p=0.95, temperature=0.7, logprobs=0),
        SamplingParams(seed=4, min_p=0.02, repetition_penalty=1.2, frequency_penalty=0.3),
        dataclasses.replace(GREEDY, logprobs=20, presence_penalty=1.0),
        SamplingParams(seed=6, top_p=0.99, logit_bias=((3, 5.0),), bad_words=((1, 2),)),
        SamplingParams(seed=7, allowed_token_ids=(5, 6, 7), logprobs=2),
    ]
    for i, params in enumerate(kinds):
        yield request(params, prompt=range(i + 1), output=range(i))


@pytest.mark.parametrize("vocab", [VOCAB, 32001, LARGE_VOCAB])
def test_47_a_row_does_not_depend_on_its_batch(vocab: int) -> None:
    requests = list(mixed_requests())
    logits = random_rows(len(requests), vocab)
    together = sample(logits, requests)
    alone = [sample(logits[i : i + 1], [r])[0] for i, r in enumerate(requests)]
    order = [5, 2, 7, 0, 6, 1, 4, 3]
    permuted = sample(logits[order], [requests[i] for i in order])
    assert together == alone
    assert [permuted[order.index(i)] for i in range(len(order))] == together


def test_a_row_does_not_depend_on_the_number_of_threads() -> None:
    requests = list(mixed_requests())
    logits = random_rows(len(requests), LARGE_VOCAB)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(sample(logits, requests))
        assert torch.get_num_threads() == count
    assert results[0] == results[1] == results[2]


def test_47_a_preempted_or_moved_choice_goes_on_with_the_same_draws() -> None:
    logits = random_rows(30, scale=1.0)
    params = SamplingParams(seed=42, top_p=0.9, frequency_penalty=0.4, repetition_penalty=1.1)
    steady = request(params)
    for row in logits:
        steady.output_ids.append(token(row, steady))
    resumed = request(params, output=steady.output_ids[:13])
    for row in logits[13:]:
        resumed.output_ids.append(token(row, resumed))
    assert resumed.output_ids == steady.output_ids


def test_logits_are_left_as_they_were() -> None:
    requests = list(mixed_requests())
    logits = random_rows(len(requests))
    before = logits.clone()
    sample(logits, requests)
    assert torch.equal(logits, before)


def test_bfloat16_logits_are_read_as_they_are() -> None:
    requests = list(mixed_requests())
    logits = random_rows(len(requests)).bfloat16()
    assert sample(logits, requests) == sample(logits.float(), requests)


# --- broken rows


@pytest.mark.parametrize("broken", [math.nan, math.inf], ids=["nan", "inf"])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3)], ids=["greedy", "drawn"])
def test_a_broken_row_gets_nothing_and_harms_nobody(broken: float, params: SamplingParams) -> None:
    logits = random_rows(3)
    healthy = sample(logits, [request(params)] * 3)
    logits[1, 40] = broken
    assert sample(logits, [request(params)] * 3) == [
        healthy[0],
        Sampled(token_ids=(), finite=False),
        healthy[2],
    ]


def test_a_row_without_any_possible_token_gets_nothing() -> None:
    params = dataclasses.replace(
        GREEDY, allowed_token_ids=(4, 5), bad_words=((4,),), min_tokens=1, masked_before_min=(5,)
    )
    assert sample(random_rows(1), [request(params)]) == [Sampled(token_ids=())]
    assert token(random_rows(1)[0], request(params, output=[1])) == 5


def test_an_overflow_of_a_penalty_fails_only_its_row() -> None:
    logits = random_rows(2).abs() + 1.0
    tiny = dataclasses.replace(GREEDY, repetition_penalty=1e-40)
    broken, healthy = sample(logits, [request(tiny), request(GREEDY)])
    assert broken.token_ids == ()
    assert healthy.token_ids == (int(logits[1].argmax()),)


# --- the single rules


@pytest.mark.parametrize("params", [GREEDY, dataclasses.replace(GREEDY, logprobs=0)])
def test_equal_logits_go_to_the_lowest_id(params: SamplingParams) -> None:
    row = torch.zeros(LARGE_VOCAB)
    row[[31000, 17, 40000]] = 1.0
    assert token(row, params) == 17


def test_top_k_keeps_the_lowest_ids_of_equal_logits() -> None:
    drawn = {token([1.0] * 8, SamplingParams(top_k=3, seed=seed)) for seed in range(60)}
    assert drawn == {0, 1, 2}


def test_top_p_keeps_the_token_that_reaches_the_mass() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    for top_p, wanted in ((0.35, {0}), (0.45, {0, 1}), (0.75, {0, 1, 2}), (0.95, {0, 1, 2, 3})):
        assert {token(row, SamplingParams(top_p=top_p, seed=s)) for s in range(200)} == wanted


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    params = [SamplingParams(top_p=0.5, top_k=2, seed=seed) for seed in range(200)]
    assert {token(row, p) for p in params} == {0}


@pytest.mark.parametrize("shape", ["flat", "usual", "peaked", "equal"])
def test_top_p_over_a_whole_vocabulary_equals_sorting_it(shape: str) -> None:
    scale = {"flat": 0.1, "usual": 3.0, "peaked": 30.0, "equal": 0.0}[shape]
    row = random_rows(1, LARGE_VOCAB, scale)[0]
    for top_p in (0.1, 0.9, 0.999999):
        order = row.sort(descending=True, stable=True).indices
        weights = (row[order] - row.max()).double().exp()
        count = int((weights.cumsum(0) < top_p * weights.sum()).sum()) + 1
        ids = order[:count]
        for seed in range(5):
            race = weights[:count] / exponential_noise(seed, 0, ids)
            assert token(row, SamplingParams(top_p=top_p, seed=seed)) == ids[race.argmax()]


def test_a_bad_word_is_only_stopped_at_its_last_token() -> None:
    row = [0.0, 1.0, 2.0, 3.0]
    params = dataclasses.replace(GREEDY, bad_words=((2, 1, 3),))
    assert token(row, request(params, prompt=[2], output=[1])) == 2
    assert token(row, request(params, prompt=[2, 1])) == 2
    assert token(row, request(params, prompt=[1])) == 3
    assert token(row, request(params, prompt=[2], output=[0, 1])) == 3


def test_44_stops_are_impossible_until_min_tokens() -> None:
    params = dataclasses.replace(GREEDY, min_tokens=2, masked_before_min=(3, 2))
    drawn = [token([0.0, 1.0, 2.0, 3.0], request(params, output=[0] * n)) for n in range(4)]
    assert drawn == [1, 1, 3, 3]


def test_bias_does_not_bring_back_a_masked_token() -> None:
    params = dataclasses.replace(GREEDY, logit_bias=((3, 100.0), (1, 3.0)), bad_words=((3,),))
    assert token([0.0, 1.0, 2.0, 3.0], params) == 1


def test_43_only_repetition_looks_at_the_prompt() -> None:
    row = [0.0, 1.0, 1.1, -1.0]
    repetition = dataclasses.replace(GREEDY, repetition_penalty=2.0)
    presence = dataclasses.replace(GREEDY, presence_penalty=2.0)
    frequency = dataclasses.replace(GREEDY, frequency_penalty=0.06)
    assert token(row, request(repetition, prompt=[2])) == 1
    assert token(row, request(presence, prompt=[2, 2])) == 2
    assert token(row, request(presence, prompt=[0], output=[2])) == 1
    assert token(row, request(frequency, prompt=[0], output=[2])) == 2
    assert token(row, request(frequency, prompt=[0], output=[2, 2])) == 1


# --- logprobs


def test_40_logprobs_are_of_the_raw_logits() -> None:
    row = random_rows(1)[0]
    params = SamplingParams(
        seed=8, temperature=0.2, top_k=1, logprobs=3, logit_bias=((9, 50.0),), top_p=0.5
    )
    (sampled,) = sample(row[None], [request(params)])
    assert sampled.token_ids == (9,)
    (logprobs,) = sampled.logprobs
    wanted = torch.log_softmax(row.double(), 0)
    best = wanted.topk(3).indices.tolist()
    assert logprobs.token_ids == (9, *best)
    assert logprobs.logprobs == pytest.approx([float(wanted[i]) for i in logprobs.token_ids])
    assert logprobs.ranks == (int((wanted > wanted[9]).sum()) + 1, 1, 2, 3)


def test_the_sampled_token_comes_first_and_again_among_the_best() -> None:
    (sampled,) = sample(torch.tensor([[1.0, 2.0, 2.0]]), [request(SamplingParams(logprobs=9))])
    (logprobs,) = sampled.logprobs
    assert logprobs.token_ids[1:] == (1, 2, 0)
    assert logprobs.ranks[1:] == (1, 2, 3)
    assert logprobs.ranks[0] == logprobs.token_ids[1:].index(logprobs.token_ids[0]) + 1


def test_no_alternatives_are_reported_for_zero_and_nothing_for_none() -> None:
    asked, silent = sample(
        random_rows(2), [request(dataclasses.replace(GREEDY, logprobs=k)) for k in (0, None)]
    )
    assert asked.logprobs[0].token_ids == asked.token_ids
    assert asked.logprobs[0].ranks == (1,)
    assert silent.logprobs == ()


def test_58_impossible_tokens_have_the_floor_as_logprob() -> None:
    row = torch.tensor([[0.0, -math.inf, -math.inf]])
    (sampled,) = sample(row, [request(dataclasses.replace(GREEDY, logprobs=3))])
    assert sampled.logprobs[0].logprobs == (0.0, 0.0, LOGPROB_FLOOR, LOGPROB_FLOOR)


def test_prompt_logprobs_are_those_of_each_target() -> None:
    logits = random_rows(4)
    logits[2, 5] = math.nan
    result = Sampler(VOCAB).prompt_logprobs(logits, [7, 0, 1, 96], 2)
    wanted = torch.log_softmax(logits.double(), -1)
    for i, target in ((0, 7), (1, 0), (3, 96)):
        ids = [target, *wanted[i].topk(2).indices.tolist()]
        assert result[i].token_ids == tuple(ids)
        assert result[i].logprobs == pytest.approx([float(wanted[i, j]) for j in ids])
    assert set(result[2].logprobs) == {LOGPROB_FLOOR}
    assert result[1] == Sampler(VOCAB).prompt_logprobs(logits[1:2], [0], 2)[0]


# --- candidates of a beam search


@settings(max_examples=500)
@given(row=rows(), params=PARAMS, count=st.integers(1, VOCAB + 3), output=FEW_IDS)
def test_candidates_are_the_best_after_the_edits_ties_by_id(
    row: Row, params: SamplingParams, count: int, output: list[int]
) -> None:
    """Neither temperature nor filters touch them."""
    chosen = request(dataclasses.replace(params, num_candidates=count), output=output)
    (sampled,) = sample(torch.from_numpy(row)[None], [chosen])
    assert sampled.token_ids == ()
    out = edited(row, chosen).astype(np.float64)
    if not np.isfinite(out.max()):
        assert sampled.candidates == NO_CANDIDATES
        return
    logprobs = out - out.max() - np.log(np.exp(out - out.max()).sum())
    order = [i for i in np.argsort(-logprobs, kind="stable") if logprobs[i] > -np.inf]
    got = sampled.candidates
    assert list(got.logprobs) == pytest.approx(list(logprobs[order[:count]]), rel=1e-5, abs=1e-5)
    assert list(got.logprobs) == sorted(got.logprobs, reverse=True)
    for token, value in zip(got.token_ids, got.logprobs, strict=True):
        assert value == pytest.approx(logprobs[token], rel=1e-5, abs=1e-5)
    # float32 may make equals of what differs by less than it can tell.
    for (first, a), (second, b) in itertools.pairwise(
        zip(got.token_ids, got.logprobs, strict=True)
    ):
        assert a > b or first < second


def test_candidates_do_not_depend_on_neighbours_and_are_float32() -> None:
    logits = random_rows(5, LARGE_VOCAB)
    chosen = [request(dataclasses.replace(GREEDY, num_candidates=6)) for _ in range(5)]
    together = sample(logits, chosen)
    for i in (0, 3):
        assert sample(logits[i : i + 1], chosen[:1]) == [together[i]]
        wanted = logits[i].log_softmax(-1).topk(6)
        assert together[i].candidates.token_ids == tuple(wanted.indices.tolist())
        assert together[i].candidates.logprobs == tuple(wanted.values.tolist())


def test_a_search_whose_logits_are_not_finite_gets_nothing() -> None:
    row = torch.tensor([[0.0, math.nan, 1.0]])
    (sampled,) = sample(row, [request(dataclasses.replace(GREEDY, num_candidates=2))])
    assert not sampled.finite
