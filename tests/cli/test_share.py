from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.cli.share import share_of
from octavo.engine.config import EngineConfig


def test_single_engine_takes_what_was_asked_for() -> None:
    config = EngineConfig(memory_fraction=0.5)
    assert share_of(config, replicas=1, cores=8) == config


@given(fraction=st.floats(0.1, 0.95), replicas=st.integers(2, 10), cores=st.integers(1, 128))
def test_shares_together_are_no_more_than_the_machine(
    fraction: float, replicas: int, cores: int
) -> None:
    share = share_of(EngineConfig(memory_fraction=fraction), replicas=replicas, cores=cores)
    assert share.memory_fraction * replicas <= fraction * (1 + 1e-9)
    assert share.threads >= 1
    assert share.threads * replicas <= max(cores, replicas)


def test_memory_share_stays_a_valid_setting() -> None:
    assert share_of(EngineConfig(memory_fraction=0.1), replicas=64, cores=2).memory_fraction == 0.01


def test_threads_that_the_user_chose_are_kept() -> None:
    assert share_of(EngineConfig(threads=3), replicas=2, cores=8).threads == 3
