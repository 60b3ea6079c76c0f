"""From a folder on disk to a core that serves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.engine.harness import generate
from tests.engine.tiny_model import write_tiny_model
from tests.fakes import BYTE_VOCAB, EOS, FakeEnv

from octavo.engine.config import EngineConfig
from octavo.engine.loading import LoadedEngine, Loading
from octavo.engine.metrics import EngineMetrics
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


class Stages:
    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []

    def __call__(self, stage: str, text: str, *, seconds: float, done: bool) -> None:
        if done:
            self.done.append((stage, text))


def load(
    config: EngineConfig,
    stages: Stages | None = None,
    wake: Callable[[], None] = lambda: None,
) -> LoadedEngine:
    return Loading(
        config,
        env=FakeEnv(),
        epoch=3,
        report=stages or Stages(),
        make_metrics=lambda name: EngineMetrics(CollectorRegistry(), name),
        wake=wake,
    ).run()


def test_the_card_says_what_is_served(folder: Path) -> None:
    stages = Stages()
    engine = load(EngineConfig(model=str(folder), kv_bytes=2_000_000, max_num_seqs=4), stages)
    card = engine.card
    assert [s for s, _ in stages.done] == ["model", "weights", "memory", "warm-up"]
    assert list(card.served_names) == [str(folder), folder.name]
    assert (card.vocab_size, list(card.eos_token_ids)) == (BYTE_VOCAB, [EOS])
    assert card.exact
    assert card.numerics_id
    assert card.default_sampling.temperature == pytest.approx(0.7)
    assert [f.name for f in card.files] == ["tokenizer.json", "chat_template.jinja"]
    assert card.num_blocks == engine.core.model.capacity.num_blocks
    assert card.max_model_len == min(512, card.num_blocks * 16)


def test_a_loaded_engine_generates_the_same_again(folder: Path) -> None:
    outputs = []
    for names in (("a", "b"), ("b",)):
        engine = load(EngineConfig(model=str(folder), served_name=names, kv_bytes=2_000_000))
        assert list(engine.card.served_names) == list(names)
        engine.core.submit(generate(list(b"hello"), seed=1, max_tokens=8, model="b"), None)
        ids: list[int] = []
        while engine.core.num_open:
            ids += [t for _, d in engine.core.step().deltas for t in d.token_ids]
        outputs.append(ids)
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) >= 1


def test_prefixes_of_the_start_are_pinned_before_it_is_ready(folder: Path, tmp_path: Path) -> None:
    path, stages = tmp_path / "pins.jsonl", Stages()
    path.write_text('{"messages": [{"role": "system", "content": "Answer in one sentence."}]}\n')
    config = EngineConfig(
        model=str(folder), kv_bytes=2_000_000, max_model_len=64, pin_prefix=str(path)
    )
    engine = load(config, stages)
    assert [s for s, _ in stages.done][-1] == "pins"
    assert "1 prefixes · 1 of at most" in stages.done[-1][1]
    (pin,) = engine.orders.pins
    proto = engine_pb2.GenerateRequest(max_tokens=1)
    proto.messages.messages.add(role="system", content="Answer in one sentence.")
    proto.messages.messages.add(role="user", content="Why?")
    engine.encoder.encode(proto)
    engine.core.submit(proto, None)
    deltas = [d for _, d in engine.core.step().deltas]
    assert deltas[0].cached_tokens == 16 * len(pin.blocks) == 16


def test_a_prefix_that_cannot_be_pinned_stops_the_start(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "pins.jsonl"
    path.write_text('\n{"text": "too short"}\n')
    config = EngineConfig(model=str(folder), kv_bytes=2_000_000, pin_prefix=str(path))
    with pytest.raises(OctavoError, match=r"line 2: prefix: has 9 tokens; only full blocks"):
        load(config)


def test_the_host_tier_is_measured_and_used_as_set(folder: Path) -> None:
    config = EngineConfig(
        model=str(folder), kv_bytes=2_000_000, host_cache_bytes=1_000_000, preemption_mode="swap"
    )
    stages = Stages()
    engine = load(config, stages)
    slots = engine.core.scheduler.cache.host.num_slots
    assert slots > 10
    assert f"host 0.00 GB = {slots:,} blocks" in dict(stages.done)["memory"]


def answer(engine: LoadedEngine, ids: list[int]) -> tuple[list[int], int]:
    """The tokens and how many of the prompt were cached."""
    ticket = engine.core.submit(generate(ids, temperature=0.0, max_tokens=8), None)
    tokens: list[int] = []
    cached = 0
    while ticket.open:
        for _, delta in engine.core.step().deltas:
            tokens += delta.token_ids
            cached = max(cached, delta.cached_tokens)
    return tokens, cached


def test_a_restarted_engine_finds_on_disk_what_the_last_one_had(
    folder: Path, tmp_path: Path
) -> None:
    config = EngineConfig(
        model=str(folder),
        kv_bytes=300_000,
        host_cache_bytes=300_000,
        disk_cache_dir=str(tmp_path / "kv"),
    )
    prompts = [[97 + i] * 60 + [99] * 40 for i in range(20)]
    woken = threading.Semaphore(0)
    first = load(config, wake=woken.release)
    wanted = [answer(first, ids)[0] for ids in prompts]
    assert woken.acquire(timeout=30), "nothing is written"
    second = load(config)
    assert second.core.scheduler.cache.host.counts().on_disk > 0
    found = 0
    for ids, tokens in zip(prompts, wanted, strict=True):
        got, cached = answer(second, ids)
        assert got == tokens
        found += cached
    assert found > 0
    assert second.core.scheduler.cache.host.counts().read > 0


def test_a_disk_tier_without_a_host_tier_or_a_usable_folder_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(OctavoError, match="needs --host-cache-bytes") as error:
        load(EngineConfig(model=str(folder), disk_cache_dir=str(tmp_path)))
    assert error.value.kind.name == "bad_setting"
    with pytest.raises(OctavoError, match="and --prefix-caching"):
        load(
            EngineConfig(
                model=str(folder),
                host_cache_bytes=300_000,
                disk_cache_dir=str(tmp_path),
                prefix_caching=False,
            )
        )
    file = tmp_path / "file"
    file.write_text("no folder")
    config = EngineConfig(
        model=str(folder), kv_bytes=300_000, host_cache_bytes=300_000, disk_cache_dir=str(file)
    )
    with pytest.raises(OctavoError, match="disk_cache_dir"):
        load(config)


def test_what_does_not_fit_is_refused_with_the_numbers(folder: Path) -> None:
    with pytest.raises(OctavoError, match="does not fit"):
        load(EngineConfig(model=str(folder), kv_bytes=10**15))
