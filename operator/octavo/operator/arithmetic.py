"""Whether the engines of a service compute alike: only then do streams survive one of them as are.

An engine's numerics id names all that decides how it rounds, and gateways tell it. Engines of two
ids serve all the same, so nothing follows from it for them; it is told.
"""

from __future__ import annotations

from octavo.operator import pods
from octavo.operator.conditions import EXACT, Condition, condition
from octavo.operator.observed import EngineSeen
from octavo.operator.situation import Situation


def ids(situation: Situation, shown: list[str]) -> list[str]:
    """Returns the kinds of arithmetic, as shown while there are engines that nobody tells of."""
    found = {engine.numerics_id for engine in _known(situation)}
    return sorted(found) or (shown if situation.live else [])


def judge(situation: Situation) -> list[Condition]:
    """Returns the condition Exact; as it was while nobody tells, none while no engine is known."""
    known = _known(situation)
    if not known:
        before = pods.condition(situation.observed.resource, EXACT)
        if not before or not situation.live:
            return []
        return [condition(EXACT, before["status"], before["reason"], before["message"])]
    found = ids(situation, [])
    if len(found) > 1:
        return [_different(found)]
    if not all(engine.exact for engine in known):
        message = (
            "an engine found at its start that its answers depend on what else it computes: it "
            "goes on with no stream of a lost engine, unless gateways have --resume any"
        )
        return [condition(EXACT, "False", "NotExact", message, is_failure=True)]
    return [condition(EXACT, "True", "SameArithmetic", f"all engines compute alike: {found[0]}")]


def _different(found: list[str]) -> Condition:
    message = (
        f"engines compute in {len(found)} ways, so the same request may get another answer, and a "
        "stream whose engine goes needs one of the same way or ends with an error. Where that "
        "outlasts a rollout, choose equal nodes with engine.nodeSelector, or start gateways with "
        f"--resume any: {', '.join(found)}"
    )
    return condition(EXACT, "False", "DifferentArithmetic", message, is_failure=True)


def _known(situation: Situation) -> list[EngineSeen]:
    """Returns what gateways say of the service's engines that have told their arithmetic."""
    gateways = situation.observed.gateways
    return [
        engine
        for report in (gateways.reports if gateways else ())
        for engine in report.engines
        if engine.service == situation.service.full_name and engine.numerics_id
    ]
