"""By which names requests reach an InferenceService: what the gateways say, in words for its owner.

The gateways decide, for they know who claimed a name first; here it is only told, to both who claim
one. Nothing follows from it for the engines.
"""

from __future__ import annotations

from octavo.operator import pods
from octavo.operator.conditions import NAMED, Condition, condition
from octavo.operator.observed import Naming, Observed
from octavo.operator.spec import InferenceService


def judge(observed: Observed) -> Condition | None:
    """Returns the condition Named; as it was while no gateway tells, None while none ever did."""
    found = _naming(observed)
    if found is None:
        return _as_before(observed)
    told = f"requests use {', '.join(found.names)}"
    if found.lost:
        others = ", ".join(f"{name} means {service}" for name, service in found.lost)
        message = f"{told}: {others}, which has claimed it before"
        return condition(NAMED, "False", "NameOfAnother", message, is_failure=True)
    if found.heirs:
        others = ", ".join(f"{service} claims {name}" for name, service in found.heirs)
        message = f"{told}; {others}, too, and has it as soon as this service is deleted"
        return condition(NAMED, "True", "NameContested", message, is_failure=True)
    return condition(NAMED, "True", "Named", told)


def first_name(service: InferenceService, observed: Observed) -> str:
    """Returns the name for requests; while no gateway tells, the one that was told last."""
    found, claimed = _naming(observed), service.served_names
    if found is not None:
        return found.names[0]
    shown = str((observed.resource.get("status") or {}).get("model", ""))
    names = (service.full_name, *claimed, *(f"{service.namespace}/{name}" for name in claimed))
    is_kept = observed.gateways is not None and shown in names
    return shown if is_kept else claimed[0]


def _naming(observed: Observed) -> Naming | None:
    reports = observed.gateways.reports if observed.gateways else ()
    loads = (load for report in reports for load in report.services)
    return next((load.naming for load in loads if load.naming is not None), None)


def _as_before(observed: Observed) -> Condition | None:
    present = pods.condition(observed.resource, NAMED)
    if not present or observed.gateways is None:
        return None
    return condition(NAMED, present["status"], present["reason"], present["message"])
