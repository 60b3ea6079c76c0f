"""The condition of a service's certificate: told while there is time to make another one."""

from __future__ import annotations

from typing import Final

from octavo.operator.conditions import CERTIFICATE, Condition, condition
from octavo.operator.observed import Observed, Reference
from octavo.operator.spec import InferenceService
from octavo.operator.timestamps import to_text
from octavo.runtime import certificates

NOTICE_S: Final = 7 * 24 * 3600.0
"""Before a certificate ends."""


def judge(service: InferenceService, observed: Observed, now: float) -> list[Condition]:
    """Returns the condition; none of engines without TLS, and none while nothing is known."""
    tls = service.spec.engine.tls
    if tls is None:
        return []
    reference = Reference(kind="Secret", name=tls.secret_name, key=certificates.CERTIFICATE)
    if observed.references.get(reference) is None:
        return []  # what is missing or cannot be read is told of Rollout
    ends = observed.ends.get(reference)
    what = f"the certificate in Secret {tls.secret_name}"
    if ends is None:
        return [_bad("Unreadable", f"{what} cannot be read: engines and gateways refuse it")]
    if ends <= now:
        return [_bad("Ended", f"{what} ended at {to_text(ends)}: no new connection is made")]
    if ends <= now + NOTICE_S:
        return [_bad("EndsSoon", f"{what} ends at {to_text(ends)}: put another one there")]
    text = f"{what} is valid until {to_text(ends)}"
    return [condition(CERTIFICATE, "True", "CertificateValid", text)]


def _bad(reason: str, message: str) -> Condition:
    return condition(CERTIFICATE, "False", f"Certificate{reason}", message, is_failure=True)
