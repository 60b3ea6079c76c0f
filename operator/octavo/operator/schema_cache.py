"""The schema of `spec.cache`: the model's volume, and what engines keep of prompts."""

from __future__ import annotations

from typing import Final

from octavo.operator.kinds import Manifest
from octavo.operator.schema_pod import name, resources
from octavo.operator.structural import amount, array, choice, fields, rule, text, whole

MAX_CHARS: Final = 65536
"""Of all pinned prefixes together: at most 6 bytes each as JSON, so that resource and ConfigMap
stay below half a megabyte, far from what etcd (1.5 MiB) and ConfigMaps (1 MiB) can hold."""
MAX_PREFIXES: Final = 16
MAX_MESSAGES: Final = 16
ROLES: Final = ("system", "user", "assistant", "tool")
MAX_SALT: Final = 256
MAX_TTL_S: Final = 2_147_483

_ABOVE_0: Final = "quantity(string(self.size)).isGreaterThan(quantity('0'))"


def cache() -> Manifest:
    """Returns the schema."""
    return fields(
        "Where the model is kept, and what engines keep of prompts.",
        {
            "volume": _volume(),
            "host": amount(
                "Memory of each engine for KV blocks that its cache evicts and for requests that "
                "are swapped out, such as 4Gi; the engine needs so much more."
            ),
            "disk": _disk(),
            "pinnedPrefixes": _pinned_prefixes(),
        },
        rules=[
            rule(
                "!has(self.host) || quantity(string(self.host)).isGreaterThan(quantity('0'))",
                "host must be above 0: leave it out for no cache in host memory",
            ),
            rule(
                "!has(self.disk) || has(self.host)",
                "disk needs host: blocks come to the disk from there; say how much memory, such as "
                "host: 4Gi",
            ),
        ],
    )


def _volume() -> Manifest:
    advice = "delete this InferenceService and create it again, or create another one"
    same_class = (
        "has(self.storageClassName) == has(oldSelf.storageClassName) && "
        "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
    )
    return fields(
        "The volume that hf:// and s3:// models are loaded into; the engines share it.",
        {
            "size": amount(
                "Its size, such as 20Gi. It grows where the storage class allows and never "
                "shrinks; the condition ModelCached says so."
            ),
            "storageClassName": name("Its storage class; none: the cluster's default."),
            # Not ReadWriteOncePod: neither a new engine nor the loader of another revision could
            # begin before the engine that serves had gone.
            "accessMode": choice(
                "ReadWriteOnce keeps all engines on one node; ReadWriteMany does not.",
                "ReadWriteOnce", "ReadWriteMany",
                default="ReadWriteOnce",
            ),
            "loaderResources": resources(
                "What the pod that loads a model needs and gets at most, as in a pod; requests "
                "100m of cpu and 256Mi of memory unless it says otherwise."
            ),
        },
        required=["size"],
        rules=[
            rule(_ABOVE_0, "size of a volume must be above 0"),
            rule(same_class, f"storageClassName of a volume cannot change: {advice}"),
            rule(
                "self.accessMode == oldSelf.accessMode",
                f"accessMode of a volume cannot change: {advice}",
            ),
        ],
    )  # fmt: skip


def _disk() -> Manifest:
    return fields(
        "A disk of each engine for KV blocks that its host memory evicts; gone with its pod.",
        {
            "size": amount("Its size, such as 50Gi; a tenth of it stays free."),
            "storageClassName": name(
                "Storage class of a volume that is made for each pod; none: the node's own disk."
            ),
        },
        required=["size"],
        rules=[rule(_ABOVE_0, "size of a disk must be above 0")],
    )


def _pinned_prefixes() -> Manifest:
    message = fields(
        "",
        {"role": choice("", *ROLES), "content": text(most=MAX_CHARS)},
        required=["role", "content"],
    )
    prefix = fields(
        "",
        {
            "text": text("What prompts of completions begin with.", most=MAX_CHARS, least=1),
            "messages": array("What chats begin with.", message, least=1, most=MAX_MESSAGES),
            "cacheSalt": text(
                "Requests have to bring the same one to use the prefix.", most=MAX_SALT
            ),
            "ttlSeconds": whole(
                "Seconds after an engine's start for which it is kept; none: for ever.",
                least=1,
                most=MAX_TTL_S,
            ),
        },
        rules=[
            rule(
                "has(self.text) != has(self.messages)",
                "a pinned prefix has either text or messages",
            )
        ],
    )
    return array(
        "What many prompts begin with: engines compute it before they are ready, and never evict "
        "it. A change of it restarts them.",
        prefix,
        most=MAX_PREFIXES,
        rules=[
            rule(
                "self.map(p, (has(p.text) ? p.text.size() : 0) + (has(p.messages) ? "
                f"p.messages.map(m, m.content.size()).sum() : 0)).sum() <= {MAX_CHARS}",
                f"pinnedPrefixes have at most {MAX_CHARS} characters together",
            )
        ],
    )
