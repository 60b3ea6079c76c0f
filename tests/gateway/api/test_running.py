from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable

import pytest
from tests.gateway.api.scripted import Response, Step, World, says

from octavo.gateway.dispatch import Call
from octavo.gateway.overload import MemoryReader
from octavo.v1 import engine_pb2
from octavo.v1.errors import ENGINE_FAILURE, OctavoError


def ask(
    world: World,
    *,
    stream: bool,
    leaves: Callable[[Response], bool] = lambda _: False,
    leave_after_s: float | None = None,
    path: str = "/v1/chat/completions",
) -> Response:
    body = {
        "model": "smollm2",
        "stream": stream,
        **(
            {"prompt": ["a", "b"]}
            if path == "/v1/completions"
            else {"messages": [{"role": "user", "content": "hi"}]}
        ),
    }
    sent = world.ask(
        "POST", path, json.dumps(body).encode(), leaves=leaves, leave_after_s=leave_after_s
    )
    return asyncio.run(asyncio.wait_for(sent, 5))


def stalls(call: Call) -> Iterable[Step]:
    yield engine_pb2.Delta(text="a", token_ids=[5])
    yield 60.0


def silent(call: Call) -> Iterable[Step]:
    yield 60.0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("script", [stalls, silent], ids=["mid-answer", "before the first token"])
def test_a_client_that_leaves_ends_its_generation(
    stream: bool, script: Callable[[Call], Iterable[Step]]
) -> None:
    world = World(script)
    response = ask(world, stream=stream, leave_after_s=0.05)
    assert world.dispatcher.generations[0].closed
    assert not response.complete
    assert b"[DONE]" not in response.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_while_waiting_for_an_engine(stream: bool) -> None:
    world = World()
    world.dispatcher.open_s = 60.0
    response = ask(world, stream=stream, leave_after_s=0.05)
    assert world.dispatcher.cancelled == 1
    assert response.status == 0


def test_what_waits_for_a_client_does_not_keep_what_came_with_it() -> None:
    update = engine_pb2.SessionUpdate()
    for _ in range(64):
        update.deltas.add(request_id="r" * 32, token_ids=[5], text="word ")
    data = update.SerializeToString()
    read = MemoryReader(1)
    grown: list[int] = []

    def burst(call: Call) -> Iterable[Step]:
        before = read().used_bytes
        for _ in range(4000):  # none is taken before all have come
            yield engine_pb2.SessionUpdate.FromString(data).deltas[0]
        grown.append(read().used_bytes - before)
        yield from says("end")(call)

    assert ask(World(burst), stream=True).complete
    assert grown[0] < 4000 * len(data) / 8


def test_all_generations_of_several_prompts_end() -> None:
    world = World(stalls)
    ask(world, stream=True, leave_after_s=0.05, path="/v1/completions")
    assert [g.closed for g in world.dispatcher.generations] == [True, True]


def test_one_failing_prompt_ends_the_others() -> None:
    world = World()
    lost = OctavoError(ENGINE_FAILURE)
    world.dispatcher.script = lambda call: (
        [0.02, lost] if call is world.dispatcher.calls[0] else [60.0]
    )
    response = ask(world, stream=False, path="/v1/completions")
    assert response.status == 502
    assert [g.closed for g in world.dispatcher.generations] == [True, True]


def test_a_finished_generation_is_closed_as_well() -> None:
    world = World(says("Hi"))
    ask(world, stream=False)
    assert world.dispatcher.generations[0].closed


def test_an_unexpected_error_in_a_generation_is_an_internal_one() -> None:
    def script(call: Call) -> Iterable[Step]:
        raise ZeroDivisionError

    response = ask(World(script), stream=False)
    assert response.status == 500
    assert response.error["code"] == "internal_error"
    assert "ZeroDivision" not in response.body.decode()
