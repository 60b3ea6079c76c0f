"""Random sequences of what can happen to blocks, each followed by all invariants."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.engine.event_mirror import EventMirror
from tests.engine.scheduling import make_request

from octavo.engine.block_manager import BlockId, BlockManager
from octavo.engine.prefix_cache import Copy, PrefixCache
from octavo.engine.request import Request, Status

BLOCK = 4
NUM_BLOCKS = 9
RUBBISH = -1


class Allocation(RuleBasedStateMachine):
    """A cache in use, and a pool that holds token ids where a real one holds K and V.

    Operations collect in a step, which then succeeds or fails; a request takes part once a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(BlockManager(NUM_BLOCKS + 1, BLOCK))
        self.pool: dict[BlockId, list[int]] = {}
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.step: dict[Request, int] = {}
        """Requests of the step in flight, with the position up to which each is computed."""
        self.copies: list[Copy] = []
        self.mirror = EventMirror(self.cache)
        self.next_id = 1

    def idle(self) -> list[Request]:
        return [r for r in self.running if r not in self.step]

    def computed(self) -> list[Request]:
        return [r for r in self.idle() if r.num_computed == r.num_tokens]

    def draw_idle(self, data: st.DataObject) -> Request:
        return data.draw(st.sampled_from(self.idle()))

    def compute(self, request: Request, end: int) -> None:
        copy = self.cache.extend(request, end)
        if copy is not None:
            self.copies.append(copy)
        self.step[request] = end

    def try_admit(self, request: Request, length: int) -> bool:
        hits = self.cache.match(request)
        if self.cache.shortfall(request, hits) > 0:
            return False
        request.num_computed = self.cache.admit(request, hits)
        assert request.num_computed < request.num_tokens
        request.status = Status.RUNNING
        self.running.append(request)
        self.compute(request, min(request.num_computed + length, request.num_tokens))
        return True

    @rule(
        base=st.integers(0, 1),
        length=st.integers(1, 24),
        fork_at=st.integers(0, 24),
        chunk=st.integers(1, 24),
        reads=st.booleans(),
    )
    def admit(self, base: int, length: int, fork_at: int, chunk: int, reads: bool) -> None:
        """A prompt of one of two families, whose members differ from some position on."""
        prompt = [100 * base + i + (50 if i >= fork_at else 0) for i in range(length)]
        request = make_request(self.next_id, prompt, prompt_logprobs=None if reads else 0)
        self.next_id += 1
        self.try_admit(request, chunk)

    @precondition(lambda self: self.preempted)
    @rule(data=st.data(), chunk=st.integers(1, 24))
    def resume(self, data: st.DataObject, chunk: int) -> None:
        request = data.draw(st.sampled_from(self.preempted))
        if self.try_admit(request, chunk):
            self.preempted.remove(request)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), token=st.integers(0, 2), chunk=st.integers(1, 24))
    def append(self, data: st.DataObject, token: int, chunk: int) -> None:
        request = self.draw_idle(data)
        if request.num_computed == request.num_tokens:
            request.output_ids.append(token)
        end = min(request.num_computed + chunk, request.num_tokens)
        needed, available = self.cache.blocks_needed(request, end), self.cache.num_available
        if needed <= available:
            self.compute(request, end)
            assert self.cache.num_available == available - needed

    @precondition(lambda self: self.computed())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.computed()))
        child = make_request(self.next_id, parent.prompt_ids)
        self.next_id += 1
        child.output_ids = list(parent.output_ids)
        child.block_hashes = list(parent.block_hashes)
        child.num_computed = parent.num_computed
        self.cache.fork(parent, child)
        self.running.append(child)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request = self.draw_idle(data)
        self.running.remove(request)
        self.cache.release(request)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request = self.draw_idle(data)
        self.free_for_later(request)

    def free_for_later(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.release(request)
        request.num_computed = 0
        request.status = Status.PREEMPTED
        self.preempted.append(request)

    @precondition(lambda self: self.step)
    @rule(poison=st.booleans())
    def succeed(self, poison: bool) -> None:
        for source, target in self.copies:
            self.pool[target] = list(self.pool[source])
        for request, end in self.step.items():
            self.write(request, end, request.tokens(request.num_computed, end))
        poisoned = [next(iter(self.step))] if poison else []
        self.cache.commit(poisoned)
        for request, end in self.step.items():
            request.num_computed = end
        for request in poisoned:
            assert not {*self.cache.table(request)} & {*self.cache._index}
            self.running.remove(request)
            self.cache.release(request)
        self.end_step()

    @precondition(lambda self: self.step)
    @rule()
    def fail(self) -> None:
        for _, target in self.copies:
            self.pool[target] = [RUBBISH] * BLOCK
        for request, end in self.step.items():
            self.write(request, end, [RUBBISH] * (end - request.num_computed))
        self.cache.revoke()
        for request in list(self.step):
            self.free_for_later(request)
        self.end_step()

    def write(self, request: Request, end: int, tokens: list[int]) -> None:
        table = self.cache.table(request)
        for position, token in zip(range(request.num_computed, end), tokens, strict=True):
            block = self.pool.setdefault(table[position // BLOCK], [RUBBISH] * BLOCK)
            block[position % BLOCK] = token

    def end_step(self) -> None:
        self.step.clear()
        self.copies.clear()
        for request in self.running:
            table = self.cache.table(request)
            for position in range(request.num_computed):
                held = self.pool[table[position // BLOCK]][position % BLOCK]
                assert [held] == request.tokens(position, position + 1)

    @precondition(lambda self: not self.step)
    @rule()
    def reset(self) -> None:
        assert self.cache.reset() == (not self.running)

    @invariant()
    def everything_agrees(self) -> None:
        self.cache.check_integrity()

    @invariant()
    def events_give_what_is_published(self) -> None:
        self.mirror.replay()

    def teardown(self) -> None:
        if self.step:
            self.succeed(poison=False)
        for request in self.running:
            self.cache.release(request)
        self.cache.check_integrity()
        assert self.cache.num_available == NUM_BLOCKS
        assert self.cache.reset()


TestAllocation = Allocation.TestCase
TestAllocation.settings = settings(max_examples=150, stateful_step_count=50)
