"""The schema of an InferenceService: what users write, its bounds, defaults and rules.

The only home of defaults. What a rule forbids is said in the words of whoever breaks it.
"""

from __future__ import annotations

from typing import Final

from octavo.operator import model_uri, options
from octavo.operator.kinds import Manifest
from octavo.operator.schema_cache import cache
from octavo.operator.schema_pod import (
    affinity,
    environment,
    label_value,
    name,
    named,
    pod_metadata,
    resources,
    security_context,
    tolerations,
    topology_spread,
)
from octavo.operator.structural import (
    SHARE,
    SHARE_OF_ALL,
    array,
    choice,
    count_or_share,
    fields,
    number,
    rule,
    switch,
    table,
    text,
    whole,
)

MAX_REPLICAS: Final = 1000

_NONE: Final = "['0', '0%', '00%', '000%']"
"""In CEL: how a number or share says that it is of none."""

SPEC_RULES: Final = (
    rule(
        "!(has(self.replicas) && has(self.autoscaling))",
        "replicas and autoscaling exclude one another: with autoscaling the operator decides; "
        "remove one of them",
    ),
    rule(
        "!(self.model.uri.startsWith('hf://') || self.model.uri.startsWith('s3://'))"
        " || (has(self.cache) && has(self.cache.volume))",
        "hf:// and s3:// models are loaded into a volume: say with cache.volume.size how large",
    ),
    rule(
        "!has(self.model.revision)"
        " || self.model.uri.startsWith('hf://') || self.model.uri.startsWith('s3://')",
        "only hf:// and s3:// models have a revision",
    ),
    rule(
        "!has(self.cache) || !(has(self.cache.disk) || has(self.cache.pinnedPrefixes))"
        " || !has(self.engine) || !has(self.engine.options)"
        " || !has(self.engine.options.prefixCaching) || self.engine.options.prefixCaching",
        "cache.disk and cache.pinnedPrefixes need engine.options.prefixCaching, which is off",
    ),
)


def _model() -> Manifest:
    forms = ", ".join(model_uri.FORMS.values())
    whole_uri = "|".join(model_uri.PATTERNS.values())
    uri = text(
        f"Where the model comes from: {forms}.",
        most=model_uri.MAX_LENGTH,
        rules=[rule(f"self.matches('^({whole_uri})$')", f"uri must be one of {forms}")],
    )
    return fields(
        "What is served.",
        {
            "uri": uri,
            "revision": text(
                "Branch, tag or commit of an hf:// model, revision of an s3:// one; none: newest "
                "when it is loaded.",
                pattern=model_uri.REVISION,
                most=model_uri.MAX_REVISION,
            ),
            "servedNames": array(
                "Names that requests may use; none: the name of this object.",
                text(pattern="[A-Za-z0-9][A-Za-z0-9._/:@+-]*", most=128),
                most=16,
                is_set=True,
            ),
            "secretRef": named(
                "Secret whose keys become variables of loader and engine: HF_TOKEN, "
                "AWS_ACCESS_KEY_ID and the like. A change of it restarts the engines."
            ),
        },
        required=["uri"],
    )


def _engine() -> Manifest:
    ours = "|".join(flag[2:] for flag in options.OURS)
    argument = text(most=1024, least=1)
    extra = array(
        "Further arguments of the engine, each as it is; a bad one shows as condition.",
        argument,
        most=32,
        rules=[
            rule(
                f"!self.exists(a, a.matches('^--({ours})(=.*)?$'))",
                f"extraArgs cannot have {', '.join(options.OURS)}: the operator sets them",
            )
        ],
    )
    return fields(
        "The pods that serve it.",
        {
            "device": choice("What it computes on.", "cpu", "cuda", default="cpu"),
            "image": text("Image of the engine; none: the operator's own.", most=512),
            "imagePullPolicy": choice(
                "When it is pulled.", "Always", "IfNotPresent", "Never", default="IfNotPresent"
            ),
            "imagePullSecrets": array("Secrets to pull it with.", named(""), most=8, keys=["name"]),
            "options": fields(
                "The engine's own options.", {o.field: o.schema for o in options.OPTIONS}
            ),
            "extraArgs": extra,
            "tls": _tls(),
            "env": environment(),
            "resources": resources(
                "What an engine needs (requests) and gets at most (limits), as in a pod; on cuda "
                "without any GPU in the limits, one nvidia.com/gpu."
            ),
            "nodeSelector": table("Labels that nodes must have.", label_value(), most=32),
            "tolerations": tolerations(),
            "affinity": affinity(),
            "topologySpreadConstraints": topology_spread(),
            "priorityClassName": name("Priority class of the pods."),
            "runtimeClassName": name("Runtime class of the pods, such as nvidia."),
            "serviceAccountName": name("Service account of the pods; no token of it is mounted."),
            "podSecurityContext": security_context(),
            "podLabels": pod_metadata("Labels", label_value()),
            "podAnnotations": pod_metadata("Annotations", text(most=4096)),
        },
        default={},
    )


def _tls() -> Manifest:
    secret = name(
        "Secret with tls.crt, tls.key and ca.crt. The certificate has to bear the DNS name "
        "NAME-engine.NAMESPACE.svc."
    )
    return fields(
        "mTLS between gateways and engines; without it they speak plaintext. Engines are replaced "
        "when it comes, goes or names another Secret, and not when the data of the Secret change, "
        "which both sides take while they run.",
        {"secretName": secret},
        required=["secretName"],
    )


def _autoscaling() -> Manifest:
    return fields(
        "Lets the operator decide how many engines run, by the time that requests wait.",
        {
            "minReplicas": whole(
                "Fewest engines; 0: none while nobody asks.", most=MAX_REPLICAS, default=1
            ),
            "maxReplicas": whole("Most engines.", least=1, most=MAX_REPLICAS),
            "targetQueueSeconds": number(
                "Seconds of waiting above which engines are added.",
                least=0.05,
                most=3600,
                default=2,
            ),
            "idleSeconds": whole(
                "Seconds of little load before an engine is taken away, and of none before the "
                "last one is.",
                least=10,
                most=604800,
                default=300,
            ),
            "maxStepUp": whole("Most engines added at once.", least=1, most=100, default=4),
            "maxStepDown": whole("Most engines taken away at once.", least=1, most=100, default=1),
        },
        required=["maxReplicas"],
        rules=[
            rule(
                "self.minReplicas <= self.maxReplicas",
                "minReplicas must not be above maxReplicas",
            )
        ],
    )


def _rollout() -> Manifest:
    return fields(
        "How a change reaches the engines.",
        {
            "maxSurge": count_or_share(
                "Engines above the wanted number meanwhile: 1, or a share such as 25%. Without "
                "room for one, engines are replaced one by one, and the condition Rollout says "
                "so.",
                share=SHARE,
                default=1,
            ),
            "maxUnavailable": count_or_share(
                "Engines that may be missing meanwhile, such as 1 or 25%.",
                share=SHARE_OF_ALL,
                default=0,
            ),
            "drainSeconds": whole(
                "Time that requests get to end on an engine that goes, before other engines "
                "take them over.",
                most=3600,
                default=30,
            ),
            "noRoomSeconds": whole(
                "Time that a new engine waits for a place, on a node or in a quota, before old "
                "ones make room for it one by one. Where nodes are made on demand: more than one "
                "takes.",
                most=604800,
                default=30,
            ),
            "paused": switch("Whether changes wait, of engines that there are.", default=False),
        },
        rules=[
            rule(
                # Defaults are judged before their own defaults are filled in.
                "!(has(self.maxSurge) && has(self.maxUnavailable)"
                f" && string(self.maxSurge) in {_NONE} && string(self.maxUnavailable) in {_NONE})",
                "maxSurge and maxUnavailable cannot both be 0: nothing could ever change",
            )
        ],
        default={},
    )


def spec() -> Manifest:
    """Returns the schema of `spec`."""
    return fields(
        "What is wanted.",
        {
            "model": _model(),
            "engine": _engine(),
            "replicas": whole(
                "How many engines run. Without it and without autoscaling one is started, and "
                "whoever scales the Deployment has the last word. An autoscaler of this object "
                "begins once there is a number, as by kubectl scale.",
                most=MAX_REPLICAS,
            ),
            "autoscaling": _autoscaling(),
            "cache": cache(),
            "rollout": _rollout(),
        },
        required=["model"],
        rules=SPEC_RULES,
    )
