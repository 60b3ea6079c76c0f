from __future__ import annotations

import re
import time

from octavo.runtime.env import SystemEnv


def test_clock_of_decisions_never_goes_back() -> None:
    env = SystemEnv()
    times = [env.now() for _ in range(100)]
    assert times == sorted(times)


def test_wall_clock_is_unix_time() -> None:
    assert abs(SystemEnv().wall() - time.time()) < 5


def test_ids_are_128_random_bits_and_never_repeat() -> None:
    env = SystemEnv()
    ids = {env.new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch("[0-9a-f]{32}", item) for item in ids)


def test_random_streams_differ() -> None:
    env = SystemEnv()
    assert env.rng("a").random() != env.rng("a").random()
