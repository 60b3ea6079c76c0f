from __future__ import annotations

import pytest
from tests.gateway.api.scripted import STOP, Step, World
from tests.runtime.smollm2_files import tokenizer

from octavo.v1 import engine_pb2


def test_a_stop_that_applied_is_named() -> None:
    def script(call: object) -> list[Step]:
        usage = engine_pb2.Usage(prompt_tokens=9, output_tokens=1)
        return [
            engine_pb2.Delta(
                text="a", token_ids=[4], finish_reason=STOP, stop_string="END", usage=usage
            )
        ]

    choice = World(script).chat(stop=["END"]).json["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    last = World(script).chat(stop=["END"], stream=True).chunks[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", "END")
    assert last["delta"] == {"content": "a"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_token_ids_are_returned_when_asked(stream: bool) -> None:
    world = World()
    response = world.chat(return_token_ids=True, stream=stream)
    prompt = list(world.request.token_ids.ids)
    expected = [*tokenizer().encode("Hello there", allow_special=False), 2]
    if stream:
        assert response.chunks[0]["prompt_token_ids"] == prompt
        shown = [i for c in response.chunks[1:] for i in c["choices"][0]["token_ids"]]
        assert shown == expected
    else:
        assert response.json["prompt_token_ids"] == prompt
        assert response.json["choices"][0]["token_ids"] == expected
