"""Owns the weights and the KV pool; turns a step's requests into tokens.

The only part of the engine that has model, kernels and sampler together. Knows no scheduler: what
runs, and in which blocks, is decided before.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from octavo.engine.batch import Logprobs, Row, SampleSpec, StepInput, StepOutput
from octavo.engine.device_error import DeviceError
from octavo.engine.models.checkpoint import Checkpoint
from octavo.engine.models.llama import Llama, Ragged
from octavo.engine.sampler import Sampler
from octavo.kernels import kv_pool, native
from octavo.kernels.copy_blocks import copy_blocks
from octavo.kernels.transfer_blocks import transfer_blocks

_LOGPROB_ROWS: Final = 64
"""Rows of logits held at once for prompt logprobs: 13 MB a 50,000 tokens of vocabulary."""
_WARM_UP_ROW: Final = 256
_COPIED_BLOCKS: Final = 64
"""Enough to be measured, and done in a moment."""

Chunk = tuple[Sequence[int], int, Sequence[int]]
"""Token ids, position of the first, block table."""


class ModelRunner:
    """Implements `batch.Runner` with torch.

    Args:
        checkpoint: the model.
        dtype: of weights, activations and KV.
        block_tokens: tokens of a KV block.
        max_batched_tokens: the most tokens of a step.
        device: where to compute.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        block_tokens: int,
        max_batched_tokens: int,
        device: torch.device | None = None,
    ) -> None:
        config = checkpoint.config
        self._dtype = dtype
        self.device = device or torch.device("cpu")
        self._block_tokens = block_tokens
        self._max_batched_tokens = max_batched_tokens
        with torch.inference_mode():
            self._model = Llama(checkpoint, dtype=dtype, device=self.device)
        self._sampler = Sampler(config.vocab_size)
        self._page = kv_pool.page_shape(
            layers=config.num_layers,
            kv_heads=config.num_kv_heads,
            block_tokens=block_tokens,
            head_dim=config.head_dim,
        )
        self.pool = self._new_pool(1)
        self.host_pool = self._new_host_pool(0)

    @property
    def bytes_per_block(self) -> int:
        """Memory of one KV block, all layers."""
        return self.pool[0].nbytes

    @property
    def weight_bytes(self) -> int:
        """Memory of the packed weights."""
        return self._model.num_bytes

    @property
    def numerics_id(self) -> str:
        """Names all that decides how results are rounded; equal on engines that agree bitwise."""
        vendor, _ = native.cpu_info()
        return "/".join(
            [
                f"kernels{native.VERSION}-{native.compiled_isa()}",
                str(self._dtype).removeprefix("torch."),
                f"{vendor}-{native.isa()}",
                f"torch{torch.__version__}",
                self._model.linear_backend,
            ]
        )

    def allocate(self, num_blocks: int, host_blocks: int = 0) -> None:
        """Reserves the KV pool, block 0 included; the system gives memory as blocks are used.

        Args:
            num_blocks: of the pool.
            host_blocks: of the host tier, slot 0 included.
        """
        self.pool = self._new_pool(num_blocks)
        self.host_pool = self._new_host_pool(host_blocks)
        positions = min(num_blocks * self._block_tokens, self._model.config.max_position)
        self._model.reserve_positions(positions)

    def read_page(self, slot: int) -> bytes:
        """See `host_tier.HostPages`; the bytes have the order `kv_pool.PAGE_ORDER`."""
        return self._page_bytes(slot).numpy().tobytes()

    def write_page(self, slot: int, page: bytes) -> None:
        """See `host_tier.HostPages`."""
        self._page_bytes(slot).copy_(torch.frombuffer(bytearray(page), dtype=torch.uint8))

    def run(self, step: StepInput) -> StepOutput:
        """Computes a step; raises DeviceError when the device is of no more use."""
        try:
            return self._compute(step)
        except torch.AcceleratorError as error:
            raise DeviceError(str(error)) from error

    @torch.inference_mode()
    def _compute(self, step: StepInput) -> StepOutput:
        """Copies, all tokens in one pass, then the logits that are wanted."""
        transfer_blocks(self.pool, self.host_pool, step.offloads)
        transfer_blocks(self.host_pool, self.pool, step.restores)
        copy_blocks(self.pool, step.copies)
        if not step.rows:
            return StepOutput()
        chunks = [(row.token_ids, row.start, row.block_table) for row in step.rows]
        hidden = self._model.forward(self._ragged(chunks, self.pool), self.pool)
        ends = np.cumsum([len(row.token_ids) for row in step.rows]).tolist()
        specs: list[SampleSpec] = []
        wanted: list[int] = []
        prompt_logprobs = {}
        for row, end in zip(step.rows, ends, strict=True):
            specs += row.samples
            wanted += [end - 1] * len(row.samples)
            if row.prompt_logprobs is not None:
                first = end - len(row.token_ids)
                prompt_logprobs[row.request.id] = self._prompt_logprobs(row, hidden[first:end])
        sampled = self._sampler.sample(self._logits(hidden, wanted), specs) if specs else []
        return StepOutput(
            sampled={spec.request.id: one for spec, one in zip(specs, sampled, strict=True)},
            prompt_logprobs=prompt_logprobs,
        )

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Runs the smallest, a middle and the largest step once, in a pool of its own."""
        for tokens in sorted({2, min(16, self._max_batched_tokens), self._max_batched_tokens}):
            lengths = [_WARM_UP_ROW] * (tokens // _WARM_UP_ROW) + [tokens % _WARM_UP_ROW]
            tables = [self._blocks(0, n) for n in lengths if n]
            pool = self._new_pool(1 + max(map(len, tables)))
            chunks = [([0] * n, 0, t) for n, t in zip(filter(None, lengths), tables, strict=True)]
            hidden = self._model.forward(self._ragged(chunks, pool), pool)
            self._model.logits(hidden[-1:])

    @torch.inference_mode()
    def copy_out_and_back(self) -> int:
        """Copies blocks to the host tier and back, scattered as they are after a while.

        Returns:
            How many copies were made; 0 without a host tier.
        """
        count = min(_COPIED_BLOCKS, len(self.pool) // 2, len(self.host_pool) // 2)
        pairs = [(1 + 2 * i, len(self.host_pool) - 1 - i) for i in range(count)]
        transfer_blocks(self.pool, self.host_pool, pairs)
        transfer_blocks(self.host_pool, self.pool, [(slot, block) for block, slot in pairs])
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return 2 * count

    @torch.inference_mode()
    def check_exact(self) -> bool:
        """Tells whether a request's logits are the same bits alone in chunks and whole in a batch.

        Runs the loaded weights on a sequence of 70 tokens twice, in chunks of different sizes and
        behind another request: each product is tried with a row alone, with few and with many.
        """
        length, before = 70, 20
        vocab = self._model.config.vocab_size
        tokens = [(i * 7919 + 11) % vocab for i in range(length)]
        others = [(i * 104729 + 5) % vocab for i in range(before)]
        table = self._blocks(0, length)
        second = self._blocks(len(table), before)
        cuts = [0, 1, 8, 40, 69, length]
        chunked = [(tokens[start:stop], start, table) for start, stop in itertools.pairwise(cuts)]
        batched = self._logits_alone([(others, 0, second), (tokens, 0, table)])[before:]
        return torch.equal(batched, self._logits_alone(*[[chunk] for chunk in chunked]))

    def _logits_alone(self, *steps: Sequence[Chunk]) -> torch.Tensor:
        """Returns all logits of steps that are run one after the other in a fresh pool."""
        pool = self._new_pool(1 + max(max(table) for step in steps for _, _, table in step))
        logits = []
        for chunks in steps:
            hidden = self._model.forward(self._ragged(chunks, pool), pool)
            logits.append(self._model.logits(hidden))
        return torch.cat(logits)

    def _blocks(self, first: int, num_tokens: int) -> list[int]:
        return list(range(first, first + -(-num_tokens // self._block_tokens)))

    def _new_pool(self, num_blocks: int) -> torch.Tensor:
        return torch.empty((num_blocks, *self._page), dtype=self._dtype, device=self.device)

    def _new_host_pool(self, num_blocks: int) -> torch.Tensor:
        pinned = self.device.type == "cuda"
        return torch.empty((num_blocks, *self._page), dtype=self._dtype, pin_memory=pinned)

    def _page_bytes(self, slot: int) -> torch.Tensor:
        if self.device.type == "cuda":  # a copy of the last step may still be under way
            torch.cuda.current_stream(self.device).synchronize()
        return self.host_pool[slot].reshape(-1).view(torch.uint8)

    def _ragged(self, chunks: Sequence[Chunk], pool: torch.Tensor) -> Ragged:
        lengths = np.array([len(tokens) for tokens, _, _ in chunks], dtype=np.int64)
        firsts = np.array([first for _, first, _ in chunks], dtype=np.int64)
        starts = np.concatenate([[0], lengths.cumsum()])
        total = int(starts[-1])
        width = max(len(table) for _, _, table in chunks)
        tables = np.zeros((len(chunks), width), dtype=np.int32)
        tokens = np.zeros(total, dtype=np.int64)
        for i, (ids, _, table) in enumerate(chunks):
            tables[i, : len(table)] = table
            tokens[starts[i] : starts[i + 1]] = ids
        requests = np.repeat(np.arange(len(chunks)), lengths)
        positions = np.arange(total) + (firsts - starts[:-1])[requests]
        # The kernels follow these numbers without looking.
        if positions.max() >= self._model.num_positions or tables.max() >= len(pool):
            raise ValueError("a step reaches beyond the rotary table or the KV pool")
        blocks = tables[requests, positions // self._block_tokens].astype(np.int64)
        return Ragged(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            slots=self._tensor(blocks * self._block_tokens + positions % self._block_tokens),
            block_tables=self._tensor(tables),
            query_starts=self._tensor(starts.astype(np.int32)),
            first_positions=self._tensor(firsts.astype(np.int32)),
        )

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self.device)

    def _logits(self, hidden: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
        index = torch.tensor(rows, device=hidden.device)
        return self._model.logits(hidden.index_select(0, index))

    def _prompt_logprobs(self, row: Row, hidden: torch.Tensor) -> tuple[Logprobs, ...]:
        """Scores the prompt tokens that follow each token of the chunk."""
        assert row.prompt_logprobs is not None
        targets = row.request.prompt_ids[row.start + 1 : row.start + len(row.token_ids) + 1]
        entries: list[Logprobs] = []
        for start in range(0, len(targets), _LOGPROB_ROWS):
            piece = targets[start : start + _LOGPROB_ROWS]
            logits = self._model.logits(hidden[start : start + len(piece)])
            entries += self._sampler.prompt_logprobs(logits, piece, row.prompt_logprobs)
        return tuple(entries)
