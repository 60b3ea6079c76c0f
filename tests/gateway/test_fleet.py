import asyncio
from collections.abc import Callable

import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import Gateway, gateway, prompt, until

from octavo.gateway.endpoints import Readiness
from octavo.gateway.fleet import Need
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    MODEL_LOADING,
    MODEL_NOT_FOUND,
    NO_ENGINE,
    ErrorKind,
    OctavoError,
)


def refusal(gw: Gateway, name: str) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        gw.fleet.model(name)
    return caught.value


def run_with(*engines: FakeEngine | str, check: Callable[[Gateway], None]) -> None:
    async def scenario() -> None:
        async with gateway(*engines, wait=False) as gw:
            await until(lambda: all(r.ready or r.stage in (1, 2, 5) for r in gw.replicas))
            check(gw)

    asyncio.run(scenario())


def test_every_served_name_is_listed_once_over_all_engines() -> None:
    names = ("tiny", "tiny-alias")

    def check(gw: Gateway) -> None:
        assert [m.name for m in gw.fleet.served()] == ["tiny", "tiny-alias", "other"]
        assert gw.fleet.model("tiny-alias").card.model == "tiny"

    engines = [FakeEngine(served_names=names) for _ in range(2)]
    run_with(*engines, FakeEngine(model="other", served_names=("other",)), check=check)


def test_engines_share_one_tokenizer() -> None:
    def check(gw: Gateway) -> None:
        first, second = (r.model for r in gw.replicas)
        assert first is not None
        assert second is not None
        assert first.tokenizer is second.tokenizer
        assert first.template is second.template

    run_with(FakeEngine(), FakeEngine(), check=check)


def test_an_unknown_name_gets_the_served_ones_and_the_nearest() -> None:
    def check(gw: Gateway) -> None:
        error = refusal(gw, "tinny")
        assert error.kind is MODEL_NOT_FOUND
        assert error.message == (
            "the model 'tinny' does not exist; served: tiny; did you mean tiny?"
        )
        assert error.param == "model"

    run_with(FakeEngine(), check=check)


def test_while_loading_the_stage_and_the_expected_time_are_told() -> None:
    def check(gw: Gateway) -> None:
        error = refusal(gw, "tiny")
        assert error.kind is MODEL_LOADING
        assert error.retry_after_ms == 7000
        assert error.message == "the model is not ready yet: loading: weights"
        assert gw.fleet.readiness() == Readiness(ready=False, stage="loading: weights", eta_ms=7000)

    engine = FakeEngine(stage=engine_pb2.STAGE_LOADING)
    engine.detail, engine.eta_ms = "weights", 7000
    run_with(engine, check=check)


def test_a_name_that_a_loading_engine_may_serve_is_not_denied() -> None:
    def check(gw: Gateway) -> None:
        assert refusal(gw, "other").kind is MODEL_LOADING
        assert gw.fleet.model("tiny").name == "tiny"

    run_with(FakeEngine(), FakeEngine(stage=engine_pb2.STAGE_LOADING), check=check)


@pytest.mark.parametrize(
    ("restarting", "kind"), [(False, NO_ENGINE), (True, MODEL_LOADING)], ids=["away", "restarting"]
)
def test_a_known_model_without_an_engine_is_unavailable_not_unknown(
    restarting: bool, kind: ErrorKind
) -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        async with gateway(engine) as gw:
            await engine.kill()
            if restarting:
                engine.stage = engine_pb2.STAGE_LOADING
                await engine.restart()
                await until(lambda: gw.replicas[0].stage == engine_pb2.STAGE_LOADING)
            await until(lambda: not gw.replicas[0].ready)
            # A moment passes between the loss of a session and that of the connection.
            await until(lambda: refusal(gw, "tiny").kind is kind)
            error = refusal(gw, "tiny")
            assert error.kind is kind
            assert error.retry_after_ms > 0
            assert gw.fleet.served() == []

    asyncio.run(scenario())


def test_before_the_first_contact_the_model_counts_as_loading() -> None:
    async def scenario() -> None:
        async with gateway("127.0.0.1:9", wait=False) as gw:
            assert refusal(gw, "tiny").kind is MODEL_LOADING
            assert not gw.fleet.readiness().ready
            await asyncio.sleep(0.2)
            error = refusal(gw, "tiny")
            assert error.kind is MODEL_LOADING
            assert error.message == "the model is not ready yet: waiting for an engine"

    asyncio.run(scenario())


def test_a_request_goes_only_where_its_tokens_mean_the_same() -> None:
    async def scenario() -> None:
        old, new = FakeEngine(), FakeEngine(weights_version="w2")
        async with gateway(old, new) as gw:
            for _ in range(6):
                await gw.text(prompt("abc"))
            assert (len(old.requests), len(new.requests)) == (6, 0)

    asyncio.run(scenario())


def test_a_request_goes_only_where_its_whole_output_is_allowed() -> None:
    card = engine_pb2.ModelCard(max_model_len=100, max_output_tokens=20)
    assert Need(num_tokens=90, output_tokens=20).is_met_by(card)
    assert not Need(num_tokens=90, output_tokens=21).is_met_by(card)
    card.max_output_tokens = 0
    assert Need(num_tokens=90, output_tokens=90).is_met_by(card)


def test_states_are_counted_and_draining_makes_unready() -> None:
    def check(gw: Gateway) -> None:
        assert dict(gw.fleet.states()) == {"ready": 1, "loading": 1}
        assert gw.fleet.readiness().ready
        gw.fleet.drain()
        assert gw.fleet.readiness() == Readiness(ready=False, stage="draining")

    run_with(FakeEngine(), FakeEngine(stage=engine_pb2.STAGE_LOADING), check=check)
