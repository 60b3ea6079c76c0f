"""Requests as other people's clients send them, and every field that one of them needs back."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.api.scripted import Response, World, says

FIXTURES = sorted((Path(__file__).parent / "fixtures").glob("*.json"))


def send(recorded: dict[str, Any]) -> Response:
    body = b"" if recorded["body"] is None else json.dumps(recorded["body"]).encode()
    world = World(says("Hello there"))
    return asyncio.run(
        world.ask(recorded["method"], recorded["path"], body, headers=recorded["headers"])
    )


@pytest.mark.parametrize("file", FIXTURES, ids=lambda f: f.stem)
def test_recorded_request(file: Path) -> None:
    recorded = json.loads(file.read_text())
    response = send(recorded)
    if recorded["refused"]:
        assert response.status == 400
        assert response.error["code"] == "unsupported_parameter"
        assert response.error["param"] in ("tool_choice", recorded["refused"])
        return
    assert response.status == 200
    assert response.headers.get("x-octavo-ignored", "") == ",".join(recorded["ignored"])
    if recorded["path"].endswith("completions"):
        check(recorded, response)


def check(recorded: dict[str, Any], response: Response) -> None:
    """Asserts every field that some client cannot do without."""
    chat = "chat" in recorded["path"]
    body = recorded["body"]
    if not body.get("stream"):
        check_answer(response.json, chat=chat)
        return
    chunks = response.chunks
    options = body.get("stream_options") or {}
    if options.get("include_usage"):
        check_usage(chunks[-1]["usage"])
        assert chunks[-1]["choices"] == []
        assert set(chunks[-1]["metrics"]) == {"queue_ms", "prefill_ms", "decode_ms", "preemptions"}
        chunks = chunks[:-1]
    for chunk in chunks:
        check_head(chunk, "chat.completion.chunk" if chat else "text_completion")
        assert [set(c) >= {"index", "finish_reason", "logprobs"} for c in chunk["choices"]] == [
            True
        ]
        if not options.get("continuous_usage_stats"):
            assert chunk.get("usage") is None
    reasons = [c["choices"][0]["finish_reason"] for c in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    if chat:
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert response.body.count(b"data: [DONE]\n\n") == 1
    assert response.body.endswith(b"data: [DONE]\n\n")


def check_head(answer: Any, kind: str) -> None:
    assert answer["object"] == kind
    assert isinstance(answer["id"], str)
    assert isinstance(answer["created"], int)
    assert answer["model"] == "smollm2"
    assert answer["system_fingerprint"] == "cpu-bf16-1"


def check_usage(usage: Any) -> None:
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["total_tokens"] == total > 0
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}


def check_answer(answer: Any, *, chat: bool) -> None:
    check_head(answer, "chat.completion" if chat else "text_completion")
    check_usage(answer["usage"])
    assert set(answer["metrics"]) == {"queue_ms", "prefill_ms", "decode_ms", "preemptions"}
    for index, choice in enumerate(answer["choices"]):
        assert choice["index"] == index
        assert choice["finish_reason"] == "stop"
        assert "logprobs" in choice
        if chat:
            assert choice["message"]["role"] == "assistant"
            assert isinstance(choice["message"]["content"], str)
        else:
            assert isinstance(choice["text"], str)
