from __future__ import annotations

import asyncio
import json

import pytest
from tests.gateway.api.scripted import World, made_model


def test_a_plain_request_without_content_type_is_answered() -> None:
    response = World().chat()
    assert response.status == 200
    assert response.json["choices"][0]["message"]["content"] == "Hello there"


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1//models", "/v1/models/", "/v1/models//", "/v1/models?x=//"],
)
def test_slashes_are_forgiven(path: str) -> None:
    assert World().get(path).status == 200


def test_doubled_slashes_reach_the_hot_paths() -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
    assert World().post("//v1//chat/completions/", body).status == 200


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/chat", "/", "/v1/models/../x"])
def test_unknown_routes_answer_in_openais_shape(path: str) -> None:
    response = World().post(path, {})
    assert response.status in (404, 405)
    assert set(response.error) >= {"message", "type", "param", "code"}
    assert response.headers["x-request-id"] == response.headers["request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("GET", "/tokenize", {"POST"}),
    ],
)
def test_a_wrong_method_is_told_the_right_one(method: str, path: str, allowed: set[str]) -> None:
    response = asyncio.run(World().ask(method, path, b""))
    assert response.status == 405
    assert response.error["code"] == "method_not_allowed"
    assert set(response.headers["allow"].split(", ")) == allowed


def test_while_loading_everything_says_so() -> None:
    world = World()
    world.fleet.loading = True
    assert world.get("/healthz").status == 200
    ready = world.get("/readyz")
    assert (ready.status, ready.headers["retry-after"]) == (503, "2")
    assert ready.json["stage"] == "loading: weights"
    for response in (world.chat(), world.complete(), world.chat(stream=True)):
        assert response.status == 503
        assert response.error["code"] == "model_loading"
        assert response.headers["retry-after"] == "2"
    models = world.get("/v1/models")
    assert models.status == 200
    assert models.json["status"] == {"ready": False, "stage": "loading: weights", "eta_ms": 1500}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer "},
        {"authorization": "Bearer x"},
        {"x-api-key": ""},
        {"x-stainless-retry-count": "0", "accept": "*/*"},
    ],
    ids=str,
)
def test_keys_are_accepted_and_ignored(headers: dict[str, str]) -> None:
    assert World().chat(headers=headers).status == 200
    assert World().get("/v1/models", headers=headers).json["data"]


@pytest.mark.parametrize("header", ["host", "origin"])
@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/v1/nothing"])
def test_strangers_are_turned_away_on_every_path(header: str, path: str) -> None:
    response = World().get(path, headers={header: "http://evil.example"})
    assert response.status == 403
    assert response.error["code"] == "origin_not_allowed"


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (("api.example.org",), 403)])
def test_in_a_cluster_it_answers_to_any_name_unless_told_which(
    allowed: tuple[str, ...], status: int
) -> None:
    world = World(discover="kubernetes", allowed_host=allowed)
    headers = {"host": "octavo-gateway.team.svc:8000"}
    assert world.get("/v1/models", headers=headers).status == status
    evil = {"origin": "https://evil.example"}
    assert world.get("/v1/models", headers=evil).status == 403


def test_a_page_of_this_machine_may_read_our_headers_also_on_errors_and_streams() -> None:
    world = World()
    origin = {"origin": "http://localhost:3000"}
    for response in (
        world.chat(headers=origin),
        world.chat(headers=origin, stream=True),
        world.chat(headers=origin, top_k="x"),
        world.get("/v1/models", headers=origin),
    ):
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert "x-octavo-route" in response.headers["access-control-expose-headers"]


def test_preflight_allows_any_header() -> None:
    wanted = "authorization,x-stainless-lang,x-anything"
    response = asyncio.run(
        World().ask(
            "OPTIONS",
            "/v1/chat/completions",
            b"",
            headers={
                "origin": "http://127.0.0.1:5173",
                "access-control-request-method": "POST",
                "access-control-request-headers": wanted,
            },
        )
    )
    assert response.status == 204
    assert response.headers["access-control-allow-headers"] == wanted
    assert "POST" in response.headers["access-control-allow-methods"]


def test_an_unexpected_error_is_a_clean_500_with_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    world = World()
    world.fleet.model = None  # type: ignore[method-assign,assignment]
    response = world.chat()
    assert response.status == 500
    assert response.headers["x-request-id"] in response.error["message"]
    assert "NoneType" not in response.body.decode()


def test_bodies_are_limited_while_they_are_read() -> None:
    world = World(max_body_bytes=1024)
    body = json.dumps({"model": "smollm2", "prompt": "x" * 2000}).encode()
    for headers in ({"content-length": str(len(body))}, {}):
        response = asyncio.run(
            world.ask("POST", "/v1/completions", body, headers=headers, piece=100)
        )
        assert response.status == 413
        assert response.error["code"] == "request_too_large"
        assert response.headers["connection"] == "close"


@pytest.mark.parametrize("size", [6_300, 32_769, 129_000, 2_000_000, 20_000_000])
def test_bodies_below_the_limit_pass(size: int) -> None:
    world = World(models=[made_model(max_model_len=40_000_000, num_blocks=10_000_000)])
    fixed = len(json.dumps({"model": "smollm2", "prompt": "", "user": "", "max_tokens": 1}))
    request = {"model": "smollm2", "prompt": "x", "user": "a" * (size - fixed - 1), "max_tokens": 1}
    body = json.dumps(request).encode()
    assert len(body) == size
    for piece in (size, 65_536):
        response = asyncio.run(world.ask("POST", "/v1/completions", body, piece=piece))
        assert response.status == 200


def test_a_client_that_leaves_during_its_body_gets_nothing() -> None:
    async def run() -> list[object]:
        sent: list[object] = []

        async def receive() -> dict[str, object]:
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await World().app(scope, receive, send)
        return sent

    assert asyncio.run(run()) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_refusal_before_an_engine_is_reported_once(path: str) -> None:
    world = World(max_body_bytes=1024)
    endpoint = "chat" if "chat" in path else "completions"
    message = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}
    message.pop("prompt" if endpoint == "chat" else "messages")
    answers = [
        world.post(path, b"{"),
        world.post(path, {"model": "none", **message}),
        world.post(path, {"model": "smollm2", "user": "a" * 2000}),
    ]
    world.fleet.loading = True
    answers.append(world.post(path, message))
    assert [a.status for a in answers] == [400, 404, 413, 503]
    names = ["invalid_json", "model_not_found", "request_too_large", "model_loading"]
    ids = [a.headers["x-request-id"] for a in answers]
    assert world.dispatcher.refusals == [
        (name, given, endpoint) for name, given in zip(names, ids, strict=True)
    ]


def test_what_an_engine_refuses_is_the_dispatchers_to_report() -> None:
    world = World()
    assert world.chat("word " * 600).status == 400
    assert world.dispatcher.refusals == []
