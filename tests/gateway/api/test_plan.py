from __future__ import annotations

from tests.gateway.api.scripted import World, made_model

from octavo.gateway.api.plan import Context, Plan, make_call
from octavo.v1 import engine_pb2


def test_the_clients_read_timeout_is_the_deadline_of_an_answer_in_one_piece() -> None:
    world = World()
    header = {"x-stainless-read-timeout": "2.5"}
    world.chat(headers=header)
    assert world.request.remaining_ms == 2500
    world.chat(headers=header, stream=True)
    assert world.request.remaining_ms == 0
    for odd in ("", "soon", "nan", "-1", "1e12"):
        world.chat(headers={"x-stainless-read-timeout": odd})
        assert world.request.remaining_ms == 0


def test_a_proxys_word_on_whose_share_it_is_wins_over_the_bodys() -> None:
    world = World()
    header = {"x-octavo-fairness-key": "team-a"}
    keys = []
    for headers, body in (({}, {}), ({}, {"fairness_key": "me"}), (header, {"fairness_key": "me"})):
        assert world.chat(headers=headers, **body).status == 200
        keys.append(world.request.fairness_key)
    assert keys == ["", "me", "team-a"]
    refused = world.chat(headers={"x-octavo-fairness-key": "two words"})
    assert (refused.status, refused.error["param"]) == (400, "X-Octavo-Fairness-Key")
    assert world.chat(fairness_key="x" * 129).error["param"] == "fairness_key"


def test_the_trace_context_is_passed_on() -> None:
    world = World()
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    world.chat(headers={"traceparent": parent})
    assert world.dispatcher.calls[0].traceparent == parent


def test_an_unknown_model_is_told_what_is_served() -> None:
    response = World().chat(model="gpt-4")
    assert (response.status, response.error["code"]) == (404, "model_not_found")
    assert "smollm2" in response.error["message"]


def test_without_a_model_the_only_one_is_meant() -> None:
    world = World()
    assert world.chat(model="").json["model"] == "smollm2"
    assert world.chat(model=None).status == 200
    two = World(models=[made_model(), made_model("other", identity=b"o" * 16)])
    assert two.chat(model="").status == 404


def test_a_plan_under_another_identity_shows_that_one() -> None:
    response = World().chat(headers={"idempotency-key": "k"})
    assert response.json["id"] == f"chatcmpl-{response.headers['x-request-id']}"
    context = Context(id="a" * 32, created=5, ignored=("user",))
    request = engine_pb2.GenerateRequest()
    call = make_call(context, made_model(), request, endpoint="chat", clamped=False)
    plan = Plan(
        endpoint="chat",
        context=context,
        model=made_model(),
        calls=(call,),
        n=1,
        stream=True,
        include_usage=False,
        continuous_usage=False,
        logprobs=None,
        prompt_logprobs=False,
        return_token_ids=False,
    )
    other = plan.under(id="b" * 32, created=9, replayed=True)
    assert other.public_id == "chatcmpl-" + "b" * 32
    assert (other.context.created, other.context.replayed) == (9, True)
    assert other.context.ignored == ("user",)
    assert other.calls == plan.calls
