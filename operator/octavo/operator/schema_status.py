"""The schema of the status of an InferenceService: what the operator tells."""

from __future__ import annotations

from octavo.operator.kinds import Manifest
from octavo.operator.structural import array, choice, fields, text, whole

_MANY = 2**31


def _condition() -> Manifest:
    return fields(
        "",
        {
            "type": text(most=316),
            "status": choice("", "True", "False", "Unknown"),
            "observedGeneration": whole("The generation that it is about.", most=2**53),
            "lastTransitionTime": text("When its status changed.", most=64, format="date-time"),
            "reason": text("For programs.", pattern="[A-Za-z]([A-Za-z0-9]*)?", most=1024, least=1),
            "message": text("For people.", most=32768),
        },
        required=["type", "status", "lastTransitionTime", "reason", "message"],
    )


def _plan() -> Manifest:
    return fields(
        "With the annotation serving.octavo.dev/dry-run: what would be done without it.",
        {
            "changes": array("Objects and fields that would change.", text(most=1024), most=256),
            "restarts": whole("Engines that would be replaced.", most=_MANY),
            "gpus": whole("GPUs that the service would hold meanwhile at most.", most=_MANY),
        },
    )


def _autoscaling() -> Manifest:
    return fields(
        "What the autoscaler remembers and why it decided so.",
        {
            "replicas": whole("Engines that it wants.", most=_MANY),
            "reason": text("Why.", most=1024),
            "lowSince": text("Since when the load has been low.", most=64, format="date-time"),
            "lastUp": text("When it last added engines.", most=64, format="date-time"),
            "lastDown": text("When it last took engines away.", most=64, format="date-time"),
            "patience": whole(
                "How many idle windows it waits: more after it took engines away too early.",
                least=1,
                most=64,
            ),
        },
    )


def status() -> Manifest:
    """Returns the schema of `status`."""
    return fields(
        "What is observed.",
        {
            "observedGeneration": whole("The generation that all of it is about.", most=2**53),
            "conditions": array(
                "Ready, ModelCached, Scheduled, Rollout, Routable and Named; Exact, whether all "
                "engines compute alike; of engines with TLS CertificateValid.",
                _condition(),
                most=16,
                keys=["type"],
            ),
            "reason": text("Reason of Ready.", most=1024),
            "model": text("The name that requests use.", most=256),
            "url": text("Where the gateway serves it.", most=1024),
            "replicas": whole("Engine pods that exist.", most=_MANY),
            "selector": text("Labels of the engine pods.", most=1024),
            "desired": whole("Engines wanted.", most=_MANY),
            "updated": whole("Engines of the present revision.", most=_MANY),
            "ready": whole("Engines whose model is loaded.", most=_MANY),
            "routable": whole("Engines that all gateways can send requests to.", most=_MANY),
            "draining": whole("Engines that end their requests and go.", most=_MANY),
            "counts": text("Routable and wanted engines.", most=64),
            "hitRate": text("Share of prompt tokens found in a KV cache.", most=8),
            "numericsIDs": array(
                "Kinds of arithmetic among the engines; more than one: answers may differ, and the "
                "condition Exact is false.",
                text(most=256),
                most=64,
                is_set=True,
            ),
            "servedRevision": text(
                "With autoscaling: hash of the engines' template that was ready last. A service "
                "that sleeps is ready while it has that one.",
                most=64,
            ),
            "autoscaling": _autoscaling(),
            "plan": _plan(),
        },
    )
