"""The runner on small random models: what a step yields, and that it depends on nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.engine.random_checkpoint import VOCAB, random_checkpoint

from octavo.engine.batch import Logprobs, Row, Sampled, SampleSpec, StepInput, StepOutput
from octavo.engine.model_runner import ModelRunner
from octavo.engine.request import Request, RequestId, SamplingParams, StopParams
from octavo.kernels import native
from octavo.v1.block_hash import BlockHash

BLOCK = 16
NUM_BLOCKS = 200
DTYPES = [torch.float32, torch.bfloat16]
LOGPROBS = SamplingParams(temperature=0.0, logprobs=5)


def make_runner(dtype: torch.dtype = torch.bfloat16) -> ModelRunner:
    runner = ModelRunner(
        random_checkpoint(), dtype=dtype, block_tokens=BLOCK, max_batched_tokens=64
    )
    runner.allocate(NUM_BLOCKS)
    return runner


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(VOCAB, (length,), generator=generator).tolist())


def request(number: int, prompt_ids: Sequence[int], sampling: SamplingParams = LOGPROBS) -> Request:
    return Request(
        id=RequestId(number),
        prompt_ids=tuple(prompt_ids),
        sampling=sampling,
        stop=StopParams(max_tokens=100),
        arrival=0.0,
        hash_root=BlockHash(bytes(16)),
    )


def row(
    of: Request, table: Sequence[int], start: int = 0, stop: int | None = None, **fields: object
) -> Row:
    """The tokens [start, stop) of a request; samples if they are its last."""
    stop = of.num_tokens if stop is None else stop
    samples = (SampleSpec(request=of),) if stop == of.num_tokens else ()
    defaults: dict[str, object] = {"samples": samples}
    return Row(
        request=of,
        start=start,
        token_ids=tuple(of.tokens(start, stop)),
        block_table=tuple(table),
        **(defaults | fields),  # type: ignore[arg-type]
    )


def blocks(first: int, num_tokens: int) -> list[int]:
    return list(range(first, first + -(-num_tokens // BLOCK)))


def run(runner: ModelRunner, *rows: Row, **fields: object) -> StepOutput:
    return runner.run(StepInput(rows=rows, **fields))  # type: ignore[arg-type]


def generate(runner: ModelRunner, of: Request, table: Sequence[int], steps: int) -> list[Sampled]:
    """Decodes alone, the prompt in one chunk."""
    drawn = []
    for start in [0, *range(of.num_tokens, of.num_tokens + steps - 1)]:
        drawn.append(run(runner, row(of, table, start)).sampled[of.id])
        of.output_ids += drawn[-1].token_ids
    return drawn


def test_greedy_output_equals_transformers() -> None:
    checkpoint = random_checkpoint()
    runner = ModelRunner(checkpoint, dtype=torch.float32, block_tokens=BLOCK, max_batched_tokens=64)
    runner.allocate(NUM_BLOCKS)
    ids = prompt(1, 40)
    of = request(1, ids)
    generate(runner, of, blocks(1, 60), 20)
    with torch.inference_mode():
        expected = checkpoint.model.generate(
            torch.tensor([ids]), do_sample=False, max_new_tokens=20, eos_token_id=None
        )
    assert of.output_ids == expected[0, 40:].tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_do_not_change_a_bit(chunk: int, dtype: torch.dtype) -> None:
    runner = make_runner(dtype)
    of = request(1, prompt(1, 90))
    whole = run(runner, row(of, blocks(1, 90))).sampled
    for start in range(0, 90, chunk):
        chunked = run(runner, row(of, blocks(50, 90), start, min(start + chunk, 90)))
    assert chunked.sampled == whole
    assert whole[of.id].logprobs


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_batch_does_not_change_a_bit(dtype: torch.dtype) -> None:
    runner = make_runner(dtype)
    requests = [request(i, prompt(i, 3 + 5 * i)) for i in range(16)]
    tables = [blocks(1 + 8 * i, of.num_tokens + 4) for i, of in enumerate(requests)]
    together: list[list[Sampled]] = [[] for _ in requests]
    for _ in range(4):
        starts = [of.num_tokens - 1 if of.output_ids else 0 for of in requests]
        rows = [row(of, t, s) for of, t, s in zip(requests, tables, starts, strict=True)]
        output = run(runner, *reversed(rows))
        for drawn, of in zip(together, requests, strict=True):
            drawn.append(output.sampled[of.id])
        for of in requests:
            of.output_ids += output.sampled[of.id].token_ids
    for i, drawn in enumerate(together):
        alone = request(i, prompt(i, 3 + 5 * i))
        assert generate(runner, alone, blocks(180, 90), 4) == drawn


def test_a_shared_prefix_gives_the_same_bits_as_a_computed_one() -> None:
    runner = make_runner()
    ids = prompt(1, 70)
    cold = run(runner, row(request(1, ids), blocks(1, 70))).sampled[RequestId(1)]
    table = [*blocks(1, 48), *blocks(20, 22)]
    assert run(runner, row(request(2, ids), table, 48)).sampled[RequestId(2)] == cold


def test_copies_are_made_before_the_rows_are_computed() -> None:
    runner = make_runner()
    ids = prompt(1, 40)
    run(runner, row(request(1, ids), blocks(1, 40), 0, 39))
    expected = run(runner, row(request(1, ids), blocks(1, 40), 39))
    forked = run(runner, row(request(1, ids), [1, 2, 9], 39), copies=((3, 9),))
    assert forked == expected


def test_siblings_draw_from_one_row_with_their_own_seeds() -> None:
    runner = make_runner()
    choices = [
        request(i, prompt(1, 20), SamplingParams(temperature=2.0, seed=seed))
        for i, seed in enumerate([7, 8, 7, 9])
    ]
    samples = tuple(SampleSpec(request=choice) for choice in choices)
    sampled = run(runner, row(choices[0], blocks(1, 20), samples=samples)).sampled
    assert list(sampled) == [0, 1, 2, 3]
    assert sampled[RequestId(0)] == sampled[RequestId(2)]
    assert len({sampled[RequestId(i)].token_ids for i in range(4)}) > 1
    alone = run(runner, row(choices[1], blocks(9, 20))).sampled
    assert alone[RequestId(1)] == sampled[RequestId(1)]


@pytest.mark.parametrize("chunk", [1, 30, 150])
def test_59_prompt_logprobs_are_complete_in_chunks(chunk: int) -> None:
    checkpoint = random_checkpoint()
    runner = ModelRunner(checkpoint, dtype=torch.float32, block_tokens=BLOCK, max_batched_tokens=64)
    runner.allocate(NUM_BLOCKS)
    of = request(1, prompt(1, 150))
    other = request(2, prompt(2, 9))
    entries: list[Logprobs] = []
    for start in range(0, 150, chunk):
        mine = row(of, blocks(20, 150), start, min(start + chunk, 150), prompt_logprobs=2)
        output = run(runner, row(other, blocks(1, 9)), mine)
        assert list(output.prompt_logprobs) == [of.id]
        entries += output.prompt_logprobs[of.id]
    ids = torch.tensor(of.prompt_ids)
    with torch.inference_mode():
        raw = checkpoint.model(ids[None]).logits[0].log_softmax(-1)
    expected = raw[torch.arange(149), ids[1:]]
    assert [entry.token_ids[0] for entry in entries] == ids[1:].tolist()
    actual = torch.tensor([entry.logprobs[0] for entry in entries])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_a_row_that_is_not_finite_gets_no_token_and_harms_no_other() -> None:
    runner = make_runner()
    good, bad = request(1, prompt(1, 30)), request(2, prompt(2, 30))
    expected = run(runner, row(good, blocks(1, 30))).sampled[good.id]
    run(runner, row(bad, blocks(9, 30), 0, 29))
    runner.pool[9].fill_(torch.nan)
    output = run(runner, row(bad, blocks(9, 30), 29), row(good, blocks(1, 30), 29))
    assert output.sampled[bad.id].token_ids == ()
    assert output.sampled[good.id] == expected


def test_a_step_without_rows_does_its_copies() -> None:
    runner = make_runner()
    runner.pool[3].fill_(1.0)
    assert run(runner, copies=((3, 4),)) == StepOutput()
    assert (runner.pool[4] == 1.0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_warm_up_and_check_leave_the_pool_alone(dtype: torch.dtype) -> None:
    runner = make_runner(dtype)
    runner.pool.fill_(1.0)
    runner.warm_up()
    assert runner.check_exact()
    assert (runner.pool == 1.0).all()


def test_the_check_notices_a_product_that_depends_on_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = make_runner(torch.float32)
    model = runner._model
    exact = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: exact(hidden) * (1 + 1e-6 * len(hidden)))
    assert not runner.check_exact()


def test_sizes_and_names() -> None:
    runner = make_runner()
    assert runner.bytes_per_block == 3 * 2 * 2 * BLOCK * 16 * 2
    assert runner.weight_bytes > 0
    assert "bfloat16" in runner.numerics_id
    assert torch.__version__ in runner.numerics_id
    assert runner.numerics_id != make_runner(torch.float32).numerics_id


def test_without_a_compiler_the_model_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    of = request(1, prompt(1, 40))
    expected = run(make_runner(torch.float32), row(of, blocks(1, 40))).sampled[of.id]
    monkeypatch.setattr(native, "library", lambda: None)
    runner = make_runner(torch.float32)
    sampled = run(runner, row(of, blocks(1, 40))).sampled[of.id]
    assert "-none/" in runner.numerics_id
    assert sampled.token_ids == expected.token_ids
    assert sampled.logprobs[0].logprobs == pytest.approx(expected.logprobs[0].logprobs, abs=1e-3)


def test_warm_up_stays_within_the_rotary_table_and_scores_one_row() -> None:
    """A budget beyond the model's positions must not read past the table."""
    runner = ModelRunner(
        random_checkpoint("Llama", max_position_embeddings=64),
        dtype=torch.float32,
        block_tokens=16,
        max_batched_tokens=3000,
    )
    runner.allocate(8)
    runner.warm_up()


def test_a_step_beyond_table_or_pool_is_refused_before_the_kernels_see_it() -> None:
    runner = ModelRunner(
        random_checkpoint("Llama"), dtype=torch.float32, block_tokens=16, max_batched_tokens=64
    )
    runner.allocate(4)
    request = Request(
        id=RequestId(1),
        prompt_ids=(1, 2),
        sampling=SamplingParams(),
        stop=StopParams(max_tokens=1),
        arrival=0.0,
        hash_root=BlockHash(b""),
    )
    for start, table in ((5000, tuple(range(1, 4)) * 200), (0, (4,))):
        row = Row(request=request, start=start, token_ids=(1, 2), block_table=table)
        with pytest.raises(ValueError, match="beyond"):
            runner.run(StepInput(rows=(row,)))


def tiered_runner() -> ModelRunner:
    runner = make_runner()
    runner.allocate(9, 7)
    for pool, seed in ((runner.pool, 1), (runner.host_pool, 2)):
        pool.copy_(torch.randn(pool.shape, generator=torch.Generator().manual_seed(seed)))
    return runner


def test_offloads_come_before_restores_and_restores_before_copies() -> None:
    runner = tiered_runner()
    pool, host = runner.pool.clone(), runner.host_pool.clone()
    run(runner, offloads=((1, 3), (2, 4), (5, 6)), restores=((3, 8), (2, 1)), copies=((1, 5),))
    for slot, block in ((3, 1), (4, 2), (6, 5)):
        assert torch.equal(runner.host_pool[slot], pool[block])
    assert torch.equal(runner.pool[8], pool[1])
    assert torch.equal(runner.pool[1], host[2])
    assert torch.equal(runner.pool[5], host[2])
    for untouched in (0, 2, 3, 4, 6, 7):
        assert torch.equal(runner.pool[untouched], pool[untouched])


def test_a_page_is_the_slots_bytes_and_nothing_else() -> None:
    runner = tiered_runner()
    before = runner.host_pool.clone()
    page = runner.read_page(2)
    assert len(page) == runner.bytes_per_block
    runner.write_page(5, page)
    assert torch.equal(runner.host_pool[5], before[2])
    for untouched in (0, 1, 2, 3, 4, 6):
        assert torch.equal(runner.host_pool[untouched], before[untouched])


def test_the_rehearsal_of_copies_counts_them_and_needs_a_host_tier() -> None:
    runner = make_runner()
    assert runner.copy_out_and_back() == 0
    assert tiered_runner().copy_out_and_back() == 2 * 3
