"""From a model's name to a running core: the stages of the start, each reported with its time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
import tokenizers
import torch

from octavo.engine.block_manager import BlockManager
from octavo.engine.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.cost import CostModel
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.disk_store import DiskStore
from octavo.engine.disk_thread import DiskThread
from octavo.engine.disk_tier import DiskTier
from octavo.engine.host_tier import HostTier
from octavo.engine.intake import Model
from octavo.engine.machine import available_cores, free_memory_bytes
from octavo.engine.memory_plan import MemoryPlan, plan_memory
from octavo.engine.metrics import EngineMetrics
from octavo.engine.model_runner import ModelRunner
from octavo.engine.models.checkpoint import Checkpoint, open_checkpoint
from octavo.engine.models.resolve import resolve
from octavo.engine.pin_file import bad_pins, read_pins
from octavo.engine.pin_orders import PinOrders
from octavo.engine.pins import Pins, budget_blocks
from octavo.engine.policy import as_policy
from octavo.engine.preemption import Preemption, PreemptionMode
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.prompt import PromptEncoder
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.env import Env
from octavo.runtime.failpoint import failpoint
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BLOCK_TOKENS, digest, model_identity
from octavo.v1.errors import BAD_SETTING, OctavoError
from octavo.v1.features import (
    FEATURE_BEAM,
    FEATURE_PRIORITY,
    FEATURE_RESUME,
    FEATURE_STATE_EVENTS,
)
from octavo.v1.validation import Capacity

log = structlog.get_logger(__name__)

T = TypeVar("T")

_PROGRESS_S = 1.0
_COPY_TRIES = 3
_SCHEMA = b"octavo.kv.1"
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Report(Protocol):
    """Gets each stage of the start, when it begins (done=False) and when it is over."""

    def __call__(self, stage: str, text: str, *, seconds: float, done: bool) -> None:
        """Tells a stage."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedEngine:
    """A core that can be stepped, and what is told about it."""

    core: EngineCore
    card: engine_pb2.ModelCard
    files: tuple[tuple[str, bytes], ...]
    encoder: PromptEncoder
    orders: PinOrders
    """What is asked of pinned prefixes; those of the start are there."""


class Loading:
    """One start of an engine.

    Args:
        config: the engine's settings.
        env: clock, chance, ids.
        epoch: this life of the process.
        report: gets the stages.
        make_metrics: makes the metrics once the model's name is known.
        wake: has the core stepped although nobody asks anything, from any thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        env: Env,
        epoch: int,
        report: Report,
        make_metrics: Callable[[str], EngineMetrics],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._env = env
        self._epoch = epoch
        self._report = report
        self._make_metrics = make_metrics
        self._wake = wake

    def run(self) -> LoadedEngine:
        """Loads the model and warms it up; raises OctavoError with the catalogue's reason."""
        config = self._config
        if config.disk_cache_dir and not (config.host_cache_bytes and config.prefix_caching):
            raise _bad_disk(config, "it needs --host-cache-bytes and --prefix-caching")
        torch.set_num_threads(config.threads or available_cores())
        checkpoint = self._stage("model", self._open)
        failpoint("engine.load")
        runner = self._stage("weights", lambda: self._pack(checkpoint))
        plan = self._stage("memory", lambda: self._allocate(checkpoint, runner))
        cost = CostModel(copy_us_per_block=self._copy_us(runner))
        exact = self._stage("warm-up", lambda: self._warm_up(runner))
        card, files = self._card(checkpoint, runner, plan, exact=exact)
        tokenizer, decoder = Tokenizer.with_reference(checkpoint.tokenizer_json)
        cache = self._cache(card, runner, plan)
        core = self._core(card, decoder, runner, cache, cost)
        log.info(
            "engine_loaded", model=card.model, numerics=card.numerics_id, exact=exact,
            threads=torch.get_num_threads(), tokenizer=tokenizer.backend,
            max_model_len=plan.max_model_len, num_blocks=plan.num_blocks, kv_bytes=plan.kv_bytes,
            host_blocks=plan.host_blocks, copy_us_per_block=round(cost.copy_us_per_block, 1),
        )  # fmt: skip
        template = _template(checkpoint, tokenizer, self._env)
        encoder = PromptEncoder(tokenizer, template, checkpoint.bos_token_id)
        orders = self._orders(core, encoder)
        return LoadedEngine(core=core, card=card, files=files, encoder=encoder, orders=orders)

    def _stage(self, stage: str, work: Callable[[], tuple[T, str]]) -> T:
        self._report(stage, "", seconds=0.0, done=False)
        began = self._env.now()
        value, text = work()
        self._report(stage, text, seconds=self._env.now() - began, done=True)
        return value

    def _open(self) -> tuple[Checkpoint, str]:
        config = self._config
        path = resolve(config.model, config.revision, progress=self._progress())
        checkpoint = open_checkpoint(path, verify=config.verify_model, told=self._progress())
        text = f"{checkpoint.model_id} · {checkpoint.config.architecture}"
        return checkpoint, f"{text} · {checkpoint.num_bytes / 1e6:,.0f} MB"

    def _progress(self) -> Callable[[int, int], None]:
        began = last = self._env.now()

        def progress(done: int, total: int) -> None:
            nonlocal last
            now = self._env.now()
            if now - last >= _PROGRESS_S:
                last = now
                rate = done / max(now - began, 1e-3)
                eta = f" · {(total - done) / rate:,.0f} s left" if rate else ""
                text = f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB · {rate / 1e6:,.1f} MB/s{eta}"
                self._report("model", text, seconds=now - began, done=False)

        return progress

    def _pack(self, checkpoint: Checkpoint) -> tuple[ModelRunner, str]:
        runner = ModelRunner(
            checkpoint,
            dtype=_DTYPES[self._config.dtype],
            block_tokens=BLOCK_TOKENS,
            max_batched_tokens=self._config.max_batched_tokens,
        )
        return runner, f"{runner.weight_bytes / 1e6:,.0f} MB packed · {self._config.dtype}"

    def _allocate(self, checkpoint: Checkpoint, runner: ModelRunner) -> tuple[MemoryPlan, str]:
        plan = plan_memory(
            self._config,
            free_bytes=free_memory_bytes(),
            bytes_per_block=runner.bytes_per_block,
            model_max_len=checkpoint.config.max_position,
        )
        runner.allocate(plan.num_blocks + 1, plan.host_blocks + 1 if plan.host_blocks else 0)
        return plan, plan.describe()

    def _copy_us(self, runner: ModelRunner) -> float:
        """Measures what a block takes to the host tier or back.

        The first try maps the memory; the fastest of the others is the least disturbed.
        """
        times: list[float] = []
        for _ in range(1 + _COPY_TRIES):
            began = self._env.now()
            copies = runner.copy_out_and_back()
            times.append(1e6 * (self._env.now() - began) / max(copies, 1))
        return min(times[1:])

    def _warm_up(self, runner: ModelRunner) -> tuple[bool, str]:
        if runner.device.type != "cpu":  # there nothing is compiled for a size: the check is enough
            runner.warm_up()
        exact = runner.check_exact()
        kind = "exact" if exact else "NOT exact: outputs may depend on batching"
        return exact, f"{kind} · {torch.get_num_threads()} threads · {runner.numerics_id}"

    def _card(
        self, checkpoint: Checkpoint, runner: ModelRunner, plan: MemoryPlan, *, exact: bool
    ) -> tuple[engine_pb2.ModelCard, tuple[tuple[str, bytes], ...]]:
        config = self._config
        tokenizer_digest = digest(checkpoint.tokenizer_json)
        identity = model_identity(
            model=checkpoint.model_id,
            revision=checkpoint.revision,
            tokenizer_digest=tokenizer_digest,
            weights_version=checkpoint.weights_version,
        )
        files = [("tokenizer.json", checkpoint.tokenizer_json)]
        if checkpoint.chat_template:
            files.append(("chat_template.jinja", checkpoint.chat_template.encode()))
        card = engine_pb2.ModelCard(
            epoch=self._epoch,
            model=checkpoint.model_id,
            served_names=config.served_name or dict.fromkeys([config.model, checkpoint.model_id]),
            revision=checkpoint.revision,
            identity=identity,
            kv_namespace=digest(
                _SCHEMA, identity, str(BLOCK_TOKENS).encode(), runner.numerics_id.encode()
            ),
            numerics_id=runner.numerics_id,
            exact=exact,
            weights_version=checkpoint.weights_version,
            block_tokens=BLOCK_TOKENS,
            num_blocks=plan.num_blocks,
            max_model_len=plan.max_model_len,
            vocab_size=checkpoint.config.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
            bos_token_id=checkpoint.bos_token_id,
            max_num_seqs=config.max_num_seqs,
            max_output_tokens=config.max_output_tokens,
            pin_blocks=budget_blocks(
                config.pin_budget,
                num_blocks=plan.num_blocks,
                request_blocks=-(-plan.max_model_len // BLOCK_TOKENS),
            ),
            default_sampling=engine_pb2.Sampling(**checkpoint.default_sampling),  # type: ignore[arg-type]
            features=self._features(),
            dtype=config.dtype,
            created_unix_s=int(self._env.wall()),
        )
        for name, data in files:
            size = len(data)
            blake2b = hashlib.blake2b(data, digest_size=16).digest()
            card.files.add(name=name, size_bytes=size, blake2b=blake2b)
        return card, tuple(files)

    def _features(self) -> int:
        features = FEATURE_RESUME | FEATURE_STATE_EVENTS | FEATURE_BEAM
        return features if self._config.scheduling_policy == "fcfs" else features | FEATURE_PRIORITY

    def _cache(
        self, card: engine_pb2.ModelCard, runner: ModelRunner, plan: MemoryPlan
    ) -> PrefixCache:
        config = self._config
        disk = None
        if config.disk_cache_dir:
            disk = self._disk(Path(config.disk_cache_dir), card.kv_namespace, runner)
        return PrefixCache(
            BlockManager(plan.num_blocks + 1, BLOCK_TOKENS),
            enabled=config.prefix_caching,
            host=HostTier(plan.host_blocks, disk=disk, pages=runner),
        )

    def _disk(self, folder: Path, namespace: bytes, runner: ModelRunner) -> DiskTier:
        """Opens the folder and starts its thread; raises BAD_SETTING when it cannot be used."""
        store = DiskStore(folder, namespace, runner.bytes_per_block)
        capacity = self._config.disk_cache_bytes // store.file_bytes
        try:
            held = store.open()
        except OSError as error:
            raise _bad_disk(self._config, str(error)) from error
        thread = DiskThread(store, self._wake)
        thread.start()
        log.info("disk_cache", folder=str(folder), blocks=len(held), capacity=capacity)
        return DiskTier(thread, capacity, held)

    def _core(
        self,
        card: engine_pb2.ModelCard,
        decoder: tokenizers.Tokenizer,
        runner: ModelRunner,
        cache: PrefixCache,
        cost: CostModel,
    ) -> EngineCore:
        config = self._config
        preemption = Preemption(mode=PreemptionMode(config.preemption_mode), cost=cost)
        scheduler_config = SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_batched_tokens=config.max_batched_tokens,
            long_prefill_tokens=config.long_prefill_tokens,
            watermark=config.watermark,
            max_queued_requests=config.max_queued_requests,
            max_queued_tokens=config.max_queued_tokens,
            scheduling_policy=as_policy(config.scheduling_policy),
            ageing_s_per_token=config.ageing_s_per_token,
            max_preemptions=config.max_preemptions,
        )

        def new_detokenizer(request: Request, *, chars_sent: int) -> Detokenizer:
            return Detokenizer(
                decoder,
                request.prompt_ids,
                request.stop,
                output_ids=request.output_ids,
                chars_sent=chars_sent,
            )

        rng = self._env.rng("seeds")
        return EngineCore(
            scheduler=Scheduler(scheduler_config, cache, preemption),
            runner=runner,
            model=Model(
                served_names=tuple(card.served_names),
                identity=card.identity,
                eos_token_ids=frozenset(card.eos_token_ids),
                capacity=Capacity.of(card),
            ),
            new_detokenizer=new_detokenizer,
            clock=self._env.now,
            draw_seed=lambda: rng.getrandbits(63),
            metrics=self._make_metrics(card.model),
            step_target_s=config.step_target_s,
            cost=cost,
        )

    def _orders(self, core: EngineCore, encoder: PromptEncoder) -> PinOrders:
        """Returns the pins, with those that the start is to have."""
        config, cache = self._config, core.scheduler.cache
        orders = PinOrders(core, Pins(cache, core.model.capacity.pin_blocks))
        if config.pin_prefix:
            path = Path(config.pin_prefix)
            self._stage("pins", lambda: self._pin(path, orders, encoder))
        return orders

    def _pin(self, path: Path, orders: PinOrders, encoder: PromptEncoder) -> tuple[int, str]:
        prefixes = read_pins(path)
        for line, proto in prefixes:
            ttl_s = proto.ttl_ms / 1e3 if proto.ttl_ms else None
            try:
                orders.pin_now(encoder.encode_prefix(proto), ttl_s, self._env.now)
            except OctavoError as error:
                raise bad_pins(path, f"line {line}: {error.message}") from error
        blocks = orders.pins.num_blocks
        return blocks, f"{len(prefixes)} prefixes · {blocks} of at most {orders.pins.budget} blocks"


def _bad_disk(config: EngineConfig, reason: str) -> OctavoError:
    value = config.disk_cache_dir
    return OctavoError(
        BAD_SETTING, key="disk_cache_dir", value=value, origin="engine", reason=reason
    )


def _template(checkpoint: Checkpoint, tokenizer: Tokenizer, env: Env) -> ChatTemplate | None:
    if not checkpoint.chat_template:
        return None
    eos = checkpoint.eos_token_ids
    return ChatTemplate(
        checkpoint.chat_template,
        bos_token="" if checkpoint.bos_token_id is None
        else tokenizer.token_text(checkpoint.bos_token_id),
        eos_token=tokenizer.token_text(eos[0]) if eos else "",
        env=env,
    )  # fmt: skip
