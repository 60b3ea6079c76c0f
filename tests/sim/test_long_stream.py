"""Gateway case 25: there is an idle timer for streams, and no bound on how long one may take."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable

from tests.gateway.api.scripted import Response, Step, World, says
from tests.runtime.smollm2_files import tokenizer
from tests.sim.loop import run

from octavo.gateway.api.events import KEEP_ALIVE
from octavo.gateway.dispatch import Call

PAUSE_S = 20.0


def test_a_stream_of_six_minutes_ends_whole_with_comments_in_its_pauses() -> None:
    def slow(call: Call) -> Iterable[Step]:
        for step in says(" ".join(["word"] * 20))(call):
            yield PAUSE_S
            yield step

    async def scenario() -> tuple[Response, float]:
        world = World(slow)
        body = {"model": "smollm2", "stream": True, "messages": [{"role": "user", "content": "x"}]}
        began = asyncio.get_running_loop().time()
        answer = await world.ask("POST", "/v1/chat/completions", json.dumps(body).encode())
        return answer, asyncio.get_running_loop().time() - began

    tokenizer()
    answer, seconds = run(scenario, rng=random.Random(25))
    assert answer.status == 200
    assert answer.complete
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert seconds >= 360
    assert answer.body.count(KEEP_ALIVE) >= seconds / PAUSE_S
