"""The conditions of an InferenceService, and the rules of how they change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from octavo.operator.failures import Failure
from octavo.operator.kinds import Manifest
from octavo.operator.timestamps import to_text

MODEL_CACHED: Final = "ModelCached"
SCHEDULED: Final = "Scheduled"
ROLLOUT: Final = "Rollout"
ROUTABLE: Final = "Routable"
CERTIFICATE: Final = "CertificateValid"
"""Of services whose engines have one."""
NAMED: Final = "Named"
EXACT: Final = "Exact"
"""Of services of whose engines a gateway knows how they compute."""
READY: Final = "Ready"

NOT_ROUTABLE: Final = "NotRoutable"
"""Reason of Routable where engines have loaded, and no gateway sends them requests."""
STOPPED: Final = "Stopped"
SCALED_TO_ZERO: Final = "ScaledToZero"
AT_REST: Final = (STOPPED, SCALED_TO_ZERO)
"""Reasons of Ready where there are to be no engines."""

Truth = Literal["True", "False", "Unknown"]

MAX_MESSAGE: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One statement about a service."""

    type: str
    status: Truth
    reason: str
    message: str
    detail: str = ""
    """Goes behind the message when it is known; until another message comes it stays there."""
    is_failure: bool = False
    """Whether somebody should look at it."""


def condition(
    type: str, status: Truth, reason: str, message: str, *, is_failure: bool = False
) -> Condition:
    """Returns a condition without a detail."""
    return Condition(
        type=type, status=status, reason=reason, message=message, is_failure=is_failure
    )


def of_failure(type: str, failure: Failure) -> Condition:
    """Returns the condition that is false because of a failure."""
    return Condition(
        type=type,
        status="False",
        reason=failure.reason,
        message=failure.message,
        detail=failure.detail,
        is_failure=True,
    )


def merge(
    wanted: list[Condition], present: list[Manifest], generation: int, now: float
) -> list[Manifest]:
    """Returns the conditions as the status has them.

    The time of the transition changes only with the status, or every look would be a write.
    """
    by_type = {known["type"]: known for known in present}
    return [_merged(c, by_type.get(c.type, {}), generation, now) for c in wanted]


def find(present: list[Manifest], type: str) -> Manifest:
    """Returns the condition of a type; empty when there is none."""
    return next((c for c in present if c.get("type") == type), {})


def _merged(wanted: Condition, present: Manifest, generation: int, now: float) -> Manifest:
    is_same = present.get("status") == wanted.status
    since = present.get("lastTransitionTime") if is_same else None
    return {
        "type": wanted.type,
        "status": wanted.status,
        "observedGeneration": generation,
        "lastTransitionTime": since or to_text(now),
        "reason": wanted.reason,
        "message": _message(wanted, present),
    }


def _message(wanted: Condition, present: Manifest) -> str:
    before = str(present.get("message", ""))
    if wanted.detail:
        return f"{wanted.message}: {wanted.detail}"[:MAX_MESSAGE]
    if present.get("reason") == wanted.reason and before.startswith(f"{wanted.message}: "):
        return before
    return wanted.message[:MAX_MESSAGE]
