"""The engine behind real gRPC, stepping on its own thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.bounds import EVENTUALLY_S
from tests.engine.harness import Engine, generate
from tests.fakes import FakeRunner, byte_tokenizer_json, expected_output
from tests.ports import loopbacks, reached_by

from octavo.engine.engine_thread import EngineThread
from octavo.engine.pin_orders import PinOrders
from octavo.engine.pins import Pins
from octavo.engine.prompt import PromptEncoder
from octavo.engine.server import ERROR_METADATA, EngineServer
from octavo.engine.session import EngineShell, Loaded
from octavo.engine.spans import RequestSpans
from octavo.engine.stepper import Bundle, Stepper
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from octavo.v1.errors import OctavoError


class Served:
    """A served engine and a channel to it."""

    def __init__(self, engine: Engine, server: EngineServer, channel: grpc.aio.Channel) -> None:
        self.engine = engine
        self.server = server
        self.channel = channel
        self.stub = engine_pb2_grpc.EngineStub(channel)
        self.control = engine_pb2_grpc.ControlStub(channel)


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[Served]:
    loop = asyncio.get_running_loop()
    shell = EngineShell(epoch=9, spans=RequestSpans())
    server = EngineServer(shell, lambda: "made-up")
    port = await server.start("127.0.0.1:0")
    thread: EngineThread

    def publish(bundle: Bundle) -> None:
        loop.call_soon_threadsafe(shell.on_bundle, bundle)

    def load() -> Stepper:
        stepper = Stepper(
            engine.core,
            publish=publish,
            wake=thread.wake,
            clock=loop.time,
            orders=PinOrders(engine.core, Pins(engine.cache, budget=4)),
        )
        encoder = PromptEncoder(Tokenizer.from_json(byte_tokenizer_json()), None, None)
        card = engine_pb2.ModelCard(model="fake", epoch=9)
        files = (("tokenizer.json", byte_tokenizer_json()),)
        loaded = Loaded(card=card, files=files, encoder=encoder, put=stepper.put)
        loop.call_soon_threadsafe(shell.attach, loaded)
        return stepper

    thread = EngineThread(load, lambda error: pytest.fail(str(error)))
    thread.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        serving = Served(engine, server, channel)
        async for update in serving.stub.State(engine_pb2.StateRequest()):
            if update.stage == engine_pb2.STAGE_READY:
                break
        await server.set_serving(serving=True)
        try:
            yield serving
        finally:
            thread.stop()
            await server.stop()


def run(test: Callable[[Served], Awaitable[None]], engine: Engine | None = None) -> None:
    async def main() -> None:
        async with served(engine or Engine()) as serving, asyncio.timeout(EVENTUALLY_S):
            await test(serving)

    asyncio.run(main())


def slow_runner() -> FakeRunner:
    """Long answers take 10 s, so that they are not over before they are disturbed."""
    return FakeRunner(before=lambda _: time.sleep(0.02))


def test_generate_streams_the_tokens_of_one_request() -> None:
    async def check(serving: Served) -> None:
        call = serving.stub.Generate(generate([1] * 20, seed=3, max_tokens=12))
        ids = [t async for delta in call for t in delta.token_ids]
        assert ids == expected_output([1] * 20, 3, 12)

    run(check)


def test_refusals_have_a_status_and_the_catalogues_error() -> None:
    async def check(serving: Served) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(serving.stub.Generate(generate([1], temperature=9.0))))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        metadata = dict(caught.value.trailing_metadata() or ())
        error = common_pb2.Error.FromString(bytes(metadata[ERROR_METADATA]))
        assert (error.code, error.param) == ("OCT-1002", "temperature")

    run(check)


def test_38_a_full_queue_is_resource_exhausted_with_the_time_to_come_back() -> None:
    async def check(serving: Served) -> None:
        first = serving.stub.Generate(generate([1] * 20, max_tokens=480, ignore_eos=True))
        await anext(aiter(first))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(serving.stub.Generate(generate([2]))))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        metadata = dict(caught.value.trailing_metadata() or ())
        error = common_pb2.Error.FromString(bytes(metadata[ERROR_METADATA]))
        assert (error.code, error.retry_after_ms) == ("OCT-2002", 1000)
        first.cancel()

    run(check, Engine(max_queued_requests=1, runner=slow_runner()))


def test_36_a_priority_that_would_be_ignored_is_unimplemented() -> None:
    async def check(serving: Served) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match="--scheduling-policy fcfs") as caught:
            await anext(aiter(serving.stub.Generate(generate([1], priority=1))))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(check, Engine(scheduling_policy="fcfs"))


def test_a_cancelled_call_frees_its_blocks() -> None:
    async def check(serving: Served) -> None:
        call = serving.stub.Generate(generate([1] * 20, max_tokens=480, ignore_eos=True))
        await anext(aiter(call))
        call.cancel()
        while serving.engine.core.num_open:
            await asyncio.sleep(0.001)
        await serving.control.ResetCache(engine_pb2.ResetCacheRequest())

    run(check, Engine(runner=slow_runner()))


def test_63_sessions_of_two_gateways_do_not_meet() -> None:
    async def check(serving: Served) -> None:
        async def one(seed: int) -> list[int]:
            call = serving.stub.Session()
            request = generate([2] * 17, seed=seed, max_tokens=30, request_id="same")
            await call.write(engine_pb2.SessionRequest(generate=[request]))
            ids: list[int] = []
            async for update in call:
                ids += [t for d in update.deltas for t in d.token_ids]
                if any(d.finish_reason for d in update.deltas):
                    return ids
            raise AssertionError("the session ended")

        both = await asyncio.gather(one(1), one(2))
        assert list(both) == [expected_output([2] * 17, s, 30) for s in (1, 2)]

    run(check)


def test_state_tells_the_blocks_that_requests_leave_behind() -> None:
    async def check(serving: Served) -> None:
        updates = aiter(serving.stub.State(engine_pb2.StateRequest()))
        first = await anext(updates)
        assert (first.cleared, first.seq, first.epoch) == (True, 1, 9)
        async for _ in serving.stub.Generate(generate([3] * 50, max_tokens=1)):
            pass
        stored: list[bytes] = []
        while len(stored) < 3:
            stored += [b.hash for b in (await anext(updates)).stored]
        assert stored == [serving.engine.cache.snapshot()[i][0] for i in range(3)]

    run(check)


def test_health_follows_readiness_and_drain() -> None:
    async def check(serving: Served) -> None:
        health: Any = health_pb2_grpc.HealthStub(serving.channel)
        answers = health_pb2.HealthCheckResponse
        request = health_pb2.HealthCheckRequest(service="octavo.v1.Engine")
        assert (await health.Check(request)).status == answers.SERVING
        updates = [u.remaining async for u in serving.control.Drain(engine_pb2.DrainRequest())]
        assert updates == [0]
        assert (await health.Check(request)).status == answers.NOT_SERVING

    run(check)


def test_reflection_lists_our_services_and_their_files() -> None:
    async def check(serving: Served) -> None:
        channel: Any = serving.channel
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        new: Any = reflection_pb2.ServerReflectionRequest
        requests = [
            new(list_services=""),
            new(file_containing_symbol="octavo.v1.Engine"),
        ]
        answers = [a async for a in stub.ServerReflectionInfo(iter(requests))]
        names = {s.name for s in answers[0].list_services_response.service}
        assert {"octavo.v1.Engine", "octavo.v1.Control", "grpc.health.v1.Health"} <= names
        raw = answers[1].file_descriptor_response.file_descriptor_proto
        files = [descriptor_pb2.FileDescriptorProto.FromString(f) for f in raw]
        assert "octavo/v1/engine.proto" in {f.name for f in files}

    run(check)


def test_garbage_is_refused_and_the_engine_goes_on() -> None:
    async def check(serving: Served) -> None:
        raw: Any = serving.channel.unary_stream("/octavo.v1.Engine/Generate")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(raw(b"\xff\xff\xff")))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [d async for d in serving.stub.Generate(generate([1], max_tokens=1))]

    run(check)


def test_a_prefix_is_pinned_listed_and_unpinned() -> None:
    async def check(serving: Served) -> None:
        text = "Answer in one short sentence."
        told = await serving.control.PinPrefix(
            engine_pb2.PinPrefixRequest(text=text, ttl_ms=60_000)
        )
        assert (told.pin.num_tokens, told.pin.ttl_ms) == (16, 60_000)
        listed = await serving.control.ListPins(engine_pb2.ListPinsRequest())
        assert [p.pin_id for p in listed.pins] == [told.pin.pin_id]
        assert (listed.pinned_blocks, listed.budget_blocks) == (1, 4)
        reader = engine_pb2.GenerateRequest(text=f"{text} Why?", max_tokens=1)
        deltas = [d async for d in serving.stub.Generate(reader)]
        assert deltas[0].cached_tokens == 16
        unpin = engine_pb2.UnpinPrefixRequest(pin_id=told.pin.pin_id)
        await serving.control.UnpinPrefix(unpin)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await serving.control.UnpinPrefix(unpin)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(check)


def test_a_prefix_beyond_the_budget_is_resource_exhausted_with_numbers() -> None:
    async def check(serving: Served) -> None:
        prefix = engine_pb2.PinPrefixRequest(token_ids=engine_pb2.TokenIds(ids=[1] * 80))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await serving.control.PinPrefix(prefix)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "needs 5 more KV blocks, but 0 of the 4" in (caught.value.details() or "")
        raw: Any = serving.channel.unary_unary("/octavo.v1.Control/PinPrefix")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(b"\xff\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(check)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.com:80", "10.0.0.1:5"])
def test_addresses_that_others_can_reach_are_refused(listen: str) -> None:
    async def check() -> None:
        server = EngineServer(EngineShell(epoch=1, spans=RequestSpans()), lambda: "x")
        with pytest.raises(OctavoError, match="loopback"):
            await server.start(listen)
        await server.stop()

    asyncio.run(check())


def test_plaintext_allows_addresses_that_others_can_reach() -> None:
    async def check() -> None:
        server = EngineServer(EngineShell(epoch=1, spans=RequestSpans()), lambda: "x")
        listen = "[::ffff:127.0.0.1]:0"  # loopback in a spelling that is not taken for it
        with pytest.raises(OctavoError, match="--plaintext allows others"):
            await server.start(listen)
        port = await server.start(listen, plaintext=True)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await server.stop()

    asyncio.run(check())


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_all_addresses_are_those_of_both_families(host: str) -> None:
    """What the operator writes into pods goes for clusters of either family."""

    async def check() -> None:
        server = EngineServer(EngineShell(epoch=1, spans=RequestSpans()), lambda: "x")
        port = await server.start(f"{host}:0", plaintext=True)
        found = reached_by(port)
        await server.stop()
        assert found == loopbacks()

    asyncio.run(check())


def test_a_port_in_use_is_one_clear_error() -> None:
    async def check(serving: Served) -> None:
        first = EngineServer(EngineShell(epoch=1, spans=RequestSpans()), lambda: "x")
        port = await first.start("127.0.0.1:0")
        second = EngineServer(EngineShell(epoch=1, spans=RequestSpans()), lambda: "x")
        with pytest.raises(OctavoError, match=f"port {port} on 127.0.0.1 is taken"):
            await second.start(f"127.0.0.1:{port}")
        await first.stop()
        await second.stop()

    run(check)
