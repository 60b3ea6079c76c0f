from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.routing import EngineView, choose, hit_tokens


def view(name: str, **fields: float) -> EngineView:
    values = {"prefill_s_per_token": 0.001, "decode_s_per_step": 0.01} | fields
    return EngineView(name=name, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("blocks", "prompt", "tokens"),
    [(0, 100, 0), (2, 32, 16), (2, 33, 32), (9, 33, 32), (1, 1, 0)],
    ids=["cold", "fully cached leaves a block", "one more token", "never beyond", "one token"],
)
def test_a_hit_saves_whole_blocks_but_never_the_last_token(
    blocks: int, prompt: int, tokens: int
) -> None:
    assert hit_tokens(blocks, prompt, 16) == tokens


def test_the_warm_engine_wins_when_idle() -> None:
    route = choose(
        [view("a"), view("b", hit_blocks=60)], prompt_tokens=1000, block_tokens=16, turn=0
    )
    assert (route.engine, route.runner_up) == ("b", "a")
    assert route.hit_tokens == 960
    assert route.uncached_tokens == 40


def test_the_warm_engine_loses_once_its_queue_costs_more_than_the_hit_saves() -> None:
    def winner(queued: int) -> str:
        views = [view("cold"), view("warm", hit_blocks=60, queued_tokens=queued)]
        return choose(views, prompt_tokens=1000, block_tokens=16, turn=0).engine

    assert winner(1_100) == "warm"
    assert winner(1_300) == "cold"


def test_running_choices_make_an_engine_dearer() -> None:
    views = [view("busy", running=10), view("idle")]
    assert choose(views, prompt_tokens=10, block_tokens=16, turn=0).engine == "idle"


def test_a_slow_engine_is_avoided_by_its_measured_speed() -> None:
    views = [view("slow", prefill_s_per_token=0.01), view("fast")]
    assert choose(views, prompt_tokens=100, block_tokens=16, turn=0).engine == "fast"


def test_equal_prices_go_to_the_fewest_in_flight() -> None:
    views = [view("a", in_flight=2), view("b", in_flight=1)]
    for turn in range(4):
        assert choose(views, prompt_tokens=10, block_tokens=16, turn=turn).engine == "b"


def test_equal_engines_take_turns() -> None:
    views = [view("a"), view("b"), view("c")]
    picks = Counter(
        choose(views, prompt_tokens=10, block_tokens=16, turn=t).engine for t in range(9)
    )
    assert picks == {"a": 3, "b": 3, "c": 3}


def test_a_single_engine_has_no_runner_up() -> None:
    route = choose([view("a")], prompt_tokens=10, block_tokens=16, turn=3)
    assert (route.engine, route.runner_up, route.runner_up_seconds) == ("a", "", None)


@given(
    views=st.lists(
        st.builds(
            EngineView,
            name=st.uuids().map(str),
            hit_blocks=st.integers(0, 10),
            queued_tokens=st.integers(0, 10_000),
            running=st.integers(0, 64),
            in_flight=st.integers(0, 64),
            prefill_s_per_token=st.floats(0, 0.01),
            decode_s_per_step=st.floats(0, 0.1),
        ),
        min_size=1,
        max_size=6,
    ),
    prompt_tokens=st.integers(1, 500),
    turn=st.integers(0, 100),
)
def test_nobody_is_cheaper_than_the_choice(
    views: list[EngineView], prompt_tokens: int, turn: int
) -> None:
    route = choose(views, prompt_tokens=prompt_tokens, block_tokens=16, turn=turn)
    alone = [choose([v], prompt_tokens=prompt_tokens, block_tokens=16, turn=0) for v in views]
    assert route.seconds == min(r.seconds for r in alone)
    if route.runner_up_seconds is not None:
        assert route.seconds <= route.runner_up_seconds
        assert route.runner_up != route.engine
