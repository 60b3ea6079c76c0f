"""Dividing memory into blocks."""

from __future__ import annotations

import pytest

from octavo.engine.config import EngineConfig
from octavo.engine.memory_plan import MemoryPlan, plan_memory
from octavo.v1.errors import OctavoError

MB = 1_000_000


def plan(config: EngineConfig, free: int = 1000 * MB) -> MemoryPlan:
    return plan_memory(config, free_bytes=free, bytes_per_block=MB, model_max_len=1600)


def test_the_fraction_of_free_memory_becomes_blocks_less_the_null_block() -> None:
    got = plan(EngineConfig(memory_fraction=0.5))
    assert (got.num_blocks, got.max_model_len, got.kv_bytes) == (499, 1600, 500 * MB)


def test_no_more_than_all_requests_at_full_length_can_use() -> None:
    assert plan(EngineConfig(memory_fraction=0.9, max_num_seqs=2)).num_blocks == 200


def test_bytes_are_taken_as_given_and_bound_the_model_length() -> None:
    got = plan(EngineConfig(kv_bytes=51 * MB))
    assert (got.num_blocks, got.max_model_len) == (50, 800)
    assert "50 blocks of 16" in got.describe()


def test_the_host_tier_has_its_own_bytes_and_is_told() -> None:
    got = plan(EngineConfig(kv_bytes=51 * MB, host_cache_bytes=21 * MB + 5))
    assert (got.num_blocks, got.host_blocks, got.host_bytes) == (50, 20, 21 * MB)
    assert got.describe().endswith("at once · host 0.02 GB = 20 blocks")
    assert "host" not in plan(EngineConfig(kv_bytes=51 * MB)).describe()


@pytest.mark.parametrize("host", [MB, 950 * MB], ids=["holds nothing", "more than is free"])
def test_a_host_tier_that_does_not_fit_is_refused(host: int) -> None:
    with pytest.raises(OctavoError, match=r"KV cache and host cache of at least .* GB"):
        plan(EngineConfig(kv_bytes=51 * MB, host_cache_bytes=host))


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(kv_bytes=2 * MB),
        EngineConfig(kv_bytes=2000 * MB),
        EngineConfig(kv_bytes=51 * MB, max_model_len=1600),
    ],
    ids=["too few blocks", "more than is free", "shorter than asked"],
)
def test_what_does_not_fit_says_what_is_needed_and_free(config: EngineConfig) -> None:
    with pytest.raises(OctavoError, match=r"KV cache of at least .* GB; free 1.00 GB") as error:
        plan(config)
    assert error.value.kind.exit_code == 4
