import asyncio
import signal

import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import engine_process

from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.link import LinkLostError
from octavo.v1 import engine_pb2


def test_streams_carry_the_bytes_of_the_contract() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        link = GrpcLink(engine.address)
        state = link.open_state()
        first = engine_pb2.StateUpdate.FromString(await state.recv() or b"")
        assert (first.seq, first.cleared) == (1, True)
        session = link.open_session()
        request = engine_pb2.GenerateRequest(request_id="a", max_tokens=1)
        request.token_ids.ids.append(5)
        greeting = engine_pb2.SessionUpdate.FromString(await session.recv() or b"")
        assert greeting == engine_pb2.SessionUpdate(epoch=1)
        await session.send(engine_pb2.SessionRequest(generate=[request]).SerializeToString())
        update = engine_pb2.SessionUpdate.FromString(await session.recv() or b"")
        assert update.accepted[0].attempt_ref.request_id == "a"
        card = link.fetch_card()
        assert engine_pb2.CardChunk.FromString(await card.recv() or b"").card.model == "tiny"
        while await card.recv() is not None:
            pass
        await link.close()
        await engine.kill()

    asyncio.run(scenario())


def test_nobody_listening_is_a_lost_link_at_once() -> None:
    async def scenario() -> None:
        link = GrpcLink("127.0.0.1:9")
        async with asyncio.timeout(EVENTUALLY_S):
            with pytest.raises(LinkLostError, match="UNAVAILABLE"):
                await link.open_state().recv()
            with pytest.raises(LinkLostError):
                await link.open_session().recv()
        await link.close()

    asyncio.run(scenario())


def test_an_engine_that_loads_has_no_card_yet() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(stage=engine_pb2.STAGE_LOADING).start()
        link = GrpcLink(engine.address)
        with pytest.raises(LinkLostError, match="loading"):
            await link.fetch_card().recv()
        await link.close()
        await engine.kill()

    asyncio.run(scenario())


def test_closing_a_stream_frees_its_reader_and_no_other() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        link = GrpcLink(engine.address)
        state, session = link.open_state(), link.open_session()
        await state.recv()
        reading = asyncio.create_task(state.recv())
        await asyncio.sleep(0.05)
        state.close()
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(reading, 1)
        state.close()
        assert await session.recv() is not None
        session.close()
        with pytest.raises(LinkLostError):
            await session.send(b"")
        await link.close()
        await engine.kill()

    asyncio.run(scenario())


def test_a_cancelled_reader_stays_cancelled() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        link = GrpcLink(engine.address)
        state = link.open_state()
        await state.recv()
        reading = asyncio.create_task(state.recv())
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await link.close()
        await engine.kill()

    asyncio.run(scenario())


def test_a_quiet_healthy_stream_is_left_alone() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        link = GrpcLink(engine.address)
        state = link.open_state()
        await state.recv()
        reading = asyncio.create_task(state.recv())
        done, _ = await asyncio.wait([reading], timeout=7)
        assert not done, "pings every 2 s must not be taken for an attack"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await link.close()
        await engine.kill()

    asyncio.run(scenario())


def test_the_link_to_a_stopped_process_breaks_within_seconds() -> None:
    async def scenario() -> None:
        async with engine_process() as (address, process):
            link = GrpcLink(address)
            state = link.open_state()
            await state.recv()
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(LinkLostError):
                await asyncio.wait_for(state.recv(), 10)
            await link.close()

    asyncio.run(scenario())
