"""Bugs in what another engine goes on from, and in who may be tried again."""

# ruff: noqa: ARG005 - a bug ignores what it should look at

from __future__ import annotations

from typing import Any

from tests.sim.mutants.mutant import Mutant, mutant

from octavo.engine.detokenizer import Detokenizer
from octavo.gateway import generation
from octavo.gateway.delivered import Delivered
from octavo.gateway.generation import Generation
from octavo.gateway.probation import Probation
from octavo.gateway.replica import Replica
from octavo.v1.errors import ENGINE_FAILURE, OctavoError

MUTANTS: list[Mutant] = []


@mutant(MUTANTS, Delivered, "continued", "C1", "C3")
def resume_is_off_by_one_at_blocks(original: Any) -> Any:
    def continued(self: Delivered, request: Any) -> None:
        original(self, request)
        for resume in request.resumes:
            if len(resume.output_ids) % 8 == 0:
                resume.output_ids.pop()

    return continued


@mutant(MUTANTS, Delivered, "continued", "C1", "C3")
def resume_starts_anew(original: Any) -> Any:
    return lambda self, request: None


@mutant(MUTANTS, Delivered, "continued", "C1")
def resume_forgets_what_was_shown(original: Any) -> Any:
    def continued(self: Delivered, request: Any) -> None:
        original(self, request)
        for resume in request.resumes:
            resume.chars_sent = 0

    return continued


@mutant(MUTANTS, Delivered, "continued", "C1", "C3")
def resume_makes_output_a_prompt(original: Any) -> Any:
    def continued(self: Delivered, request: Any) -> None:
        original(self, request)
        if len(request.resumes) == 1 and not request.resumes[0].choice:
            request.token_ids.ids.extend(request.resumes[0].output_ids)
            request.ClearField("resumes")

    return continued


@mutant(MUTANTS, Replica, "submit", "C1")
def second_attempt_has_another_seed(original: Any) -> Any:
    def submit(self: Replica, request: Any, **rest: Any) -> Any:
        request.sampling.seed += request.attempt % 1000
        return original(self, request, **rest)

    return submit


@mutant(MUTANTS, Replica, "submit", "C1")
def resume_loses_penalties(original: Any) -> Any:
    def submit(self: Replica, request: Any, **rest: Any) -> Any:
        if request.resumes:
            request.sampling.presence_penalty = 0.0
        return original(self, request, **rest)

    return submit


@mutant(MUTANTS, Detokenizer, "__init__", "C1")
def held_text_is_lost(original: Any) -> Any:
    def init(self: Detokenizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if kwargs.get("output_ids"):
            self._held = ""

    return init


@mutant(MUTANTS, Generation, "_resume", "C1")
def stream_is_not_resumed(original: Any) -> Any:
    async def resume(self: Generation) -> None:
        if self._delivered.num_tokens:
            raise OctavoError(ENGINE_FAILURE)
        await original(self)

    return resume


@mutant(MUTANTS, Generation, "_hand_over", "C1")
def handed_over_answer_is_dropped(original: Any) -> Any:
    def hand_over(self: Generation) -> None:
        raise OctavoError(ENGINE_FAILURE)

    return hand_over


@mutant(MUTANTS, Probation, "leave", "G5")
def poison_is_never_recognised(original: Any) -> Any:
    def leave(self: Probation, engine: str, request_id: str) -> bool:
        original(self, engine, request_id)
        return False

    return leave


@mutant(MUTANTS, generation, "MAX_DEATHS", "C1")
def first_death_is_the_last(original: Any) -> Any:
    return 1
