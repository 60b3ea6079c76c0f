"""A core on a fake runner: what the engine's own tests share."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import tokenizers
from prometheus_client import CollectorRegistry
from tests.engine.fake_disk import FakeDisk
from tests.fakes import BLOCK, BYTE_VOCAB, EOS, FakeRunner, byte_tokenizer_json

from octavo.engine.block_manager import BlockManager
from octavo.engine.core import EngineCore, Ticket
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.host_tier import HostTier
from octavo.engine.intake import Model
from octavo.engine.metrics import EngineMetrics
from octavo.engine.policy import Policy
from octavo.engine.preemption import Preemption
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.prompt import PromptEncoder
from octavo.engine.request import Request
from octavo.engine.scheduler import Scheduler, SchedulerConfig
from octavo.engine.session import EngineShell, Loaded
from octavo.engine.spans import RequestSpans
from octavo.engine.stepper import Stepper
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import model_identity
from octavo.v1.validation import Capacity

DECODER = tokenizers.Tokenizer.from_str(byte_tokenizer_json().decode())
IDENTITY = model_identity(model="fake", revision="1", tokenizer_digest=b"t", weights_version="w")


def new_detokenizer(request: Request, *, chars_sent: int) -> Detokenizer:
    """The production detokenizer on the byte tokenizer."""
    return Detokenizer(
        DECODER,
        request.prompt_ids,
        request.stop,
        output_ids=request.output_ids,
        chars_sent=chars_sent,
    )


class Engine:
    """A core with everything real but the runner; `run` drives it and collects deltas by ticket."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_model_len: int = 512,
        max_num_seqs: int = 8,
        max_batched_tokens: int = 64,
        long_prefill_tokens: int = 32,
        prefix_caching: bool = True,
        max_queued_requests: int = 1000,
        step_target_s: float = 0.0,
        scheduling_policy: Policy = "priority",
        max_preemptions: int = 3,
        max_output_tokens: int = 0,
        pin_blocks: int = 0,
        ageing_s_per_token: float = 0.01,
        host_slots: int = 0,
        disk: FakeDisk | None = None,
        disk_blocks: int = 50,
        preemption: Preemption | None = None,
        runner: FakeRunner | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.runner = runner or FakeRunner()
        ticks = itertools.count()
        self.cache = PrefixCache(
            BlockManager(num_blocks + 1, BLOCK),
            enabled=prefix_caching,
            host=HostTier(
                host_slots, disk=None if disk is None else disk.tier(disk_blocks), pages=self.runner
            ),
        )
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_num_seqs=max_num_seqs,
                max_batched_tokens=max_batched_tokens,
                long_prefill_tokens=long_prefill_tokens,
                watermark=0.0,
                max_queued_requests=max_queued_requests,
                max_queued_tokens=1_000_000,
                scheduling_policy=scheduling_policy,
                max_preemptions=max_preemptions,
                ageing_s_per_token=ageing_s_per_token,
            ),
            self.cache,
            preemption,
        )
        capacity = Capacity(
            vocab_size=BYTE_VOCAB,
            max_model_len=min(max_model_len, num_blocks * BLOCK),
            max_num_seqs=max_num_seqs,
            num_blocks=num_blocks,
            block_tokens=BLOCK,
            max_output_tokens=max_output_tokens,
            pin_blocks=pin_blocks,
        )
        seeds = itertools.count(1_000_000)
        self.core = EngineCore(
            scheduler=self.scheduler,
            runner=self.runner,
            model=Model(
                served_names=("fake",),
                identity=IDENTITY,
                eos_token_ids=frozenset({EOS}),
                capacity=capacity,
            ),
            new_detokenizer=new_detokenizer,
            clock=clock or (lambda: next(ticks) * 1e-3),
            draw_seed=lambda: next(seeds),
            metrics=EngineMetrics(CollectorRegistry(), "fake"),
            step_target_s=step_target_s,
        )
        self.deltas: dict[Ticket, list[engine_pb2.Delta]] = {}

    def submit(self, proto: engine_pb2.GenerateRequest) -> Ticket:
        """Submits and remembers a request."""
        ticket = self.core.submit(proto, sink=None)
        self.deltas[ticket] = []
        return ticket

    def step(self) -> bool:
        """One step with its integrity check; returns whether anything ran."""
        result = self.core.step()
        for ticket, delta in result.deltas:
            self.deltas[ticket].append(delta)
        self.scheduler.check_integrity()
        return result.ran

    def run(self, *, limit: int = 10_000) -> None:
        """Steps until nothing is open; fails after `limit` steps."""
        for _ in range(limit):
            if not self.core.num_open:
                return
            self.step()
        raise AssertionError(f"{self.core.num_open} choices still open after {limit} steps")

    def ids(self, ticket: Ticket, choice: int = 0) -> list[int]:
        """All ids of a choice, its positions checked."""
        out: list[int] = []
        for delta in self.deltas[ticket]:
            if delta.choice == choice and delta.token_ids:
                assert delta.position == len(out), (delta.position, len(out))
                out.extend(delta.token_ids)
        return out

    def text(self, ticket: Ticket, choice: int = 0) -> str:
        """All text of a choice."""
        return "".join(d.text for d in self.deltas[ticket] if d.choice == choice)

    def last(self, ticket: Ticket, choice: int = 0) -> engine_pb2.Delta:
        """The delta that ended a choice."""
        ends = [
            d
            for d in self.deltas[ticket]
            if d.choice == choice and d.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED
        ]
        assert len(ends) == 1, ends
        return ends[0]

    def assert_idle(self) -> None:
        """Nothing is in use and the cache can be emptied."""
        assert self.core.num_open == 0
        assert self.scheduler.num_running == 0
        assert self.scheduler.num_waiting == 0
        free = self.scheduler.num_free_blocks + self.scheduler.num_cached_free_blocks
        assert free == self.core.model.capacity.num_blocks
        assert self.cache.reset()
        self.scheduler.check_integrity()


def generate(prompt: Sequence[int], **fields: object) -> engine_pb2.GenerateRequest:
    """A request; `seed` and other sampling and stop fields may be given flat."""
    proto = engine_pb2.GenerateRequest(request_id="r")
    proto.token_ids.ids.extend(prompt)
    for name, value in fields.items():
        target: object = proto
        for part in ("sampling", "stop"):
            if name in getattr(engine_pb2, part.capitalize()).DESCRIPTOR.fields_by_name:
                target = getattr(proto, part)
        if isinstance(value, (list, tuple)):
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)
    return proto


class InlineShell:
    """A shell whose stepper turns on the shell's own loop, as a simulation drives it."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.engine = engine or Engine()
        loop = asyncio.get_running_loop()
        self.shell = EngineShell(epoch=42, spans=RequestSpans())
        self.stepper = Stepper(
            self.engine.core,
            publish=self.shell.on_bundle,
            wake=lambda: None,
            clock=loop.time,
        )
        tokenizer = Tokenizer.from_json(byte_tokenizer_json())
        template = ChatTemplate(TEMPLATE, bos_token="<|begin|>", eos_token="<|end|>")
        self.card = engine_pb2.ModelCard(epoch=42, model="fake", served_names=["fake"])
        self.loaded = Loaded(
            card=self.card,
            files=(("tokenizer.json", byte_tokenizer_json()),),
            encoder=PromptEncoder(tokenizer, template, None),
            put=self.stepper.put,
        )
        self.shell.attach(self.loaded)
        self._turning = asyncio.create_task(self._turn())

    async def _turn(self) -> None:
        while True:
            self.stepper.turn()
            self.engine.scheduler.check_integrity()
            await asyncio.sleep(0)


TEMPLATE = (
    "{% for m in messages %}{{ bos_token }}{{ m.role }}\n{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}assistant\n{% endif %}"
)
