"""What engines keep of prompts beside their KV cache: in host memory, on disk, and pinned.

Each pod has a disk of its own, empty at first and gone with it: blocks hold what prompts were made
of, and outlive a container that ends, no pod. Pinned prefixes are a file of a ConfigMap whose name
stands for its content, so that another file is another template, and engines of the revision before
keep theirs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import msgspec

from octavo.operator import names, quantity
from octavo.operator.fingerprint import fingerprint
from octavo.operator.kinds import CONFIG_MAP, Manifest, object_of
from octavo.operator.spec import Cache, Disk, InferenceService, Prefix

DISK: Final = "/var/cache/octavo"
"""Where the disk for KV blocks is mounted."""
PINS: Final = "/etc/octavo/pins"
"""Where the ConfigMap with the pinned prefixes is mounted."""
PINS_FILE: Final = "prefixes.jsonl"

DISK_SHARE: Final = Fraction(9, 10)
"""Of a disk's size, for the blocks. The rest is for what else is counted: files in whole blocks of
the file system, a file that is being written, folders, and the tables of a volume's own file
system. A full volume is a block less; an emptyDir above its limit costs the pod."""


def arguments(cache: Cache) -> list[str]:
    """Returns the engine's arguments."""
    found: list[str] = []
    if cache.host is not None:
        found += ["--host-cache-bytes", str(math.ceil(_bytes(cache.host)))]
    if cache.disk is not None:
        size = math.floor(_bytes(cache.disk.size) * DISK_SHARE)
        found += ["--disk-cache-dir", DISK, "--disk-cache-bytes", str(max(size, 1))]
    if cache.pinned_prefixes:
        found += ["--pin-prefix", f"{PINS}/{PINS_FILE}"]
    return found


def volumes(service: InferenceService) -> tuple[list[Manifest], list[Manifest]]:
    """Returns the volumes of a pod, and the mounts of its engine."""
    cache = service.spec.cache
    found: list[Manifest] = []
    mounts: list[Manifest] = []
    if cache.disk is not None:
        found.append({"name": "kv-blocks", **_disk(cache.disk)})
        mounts.append({"name": "kv-blocks", "mountPath": DISK})
    if cache.pinned_prefixes:
        name = _name(service.name, cache)
        found.append({"name": "pins", "configMap": {"name": name}})
        mounts.append({"name": "pins", "mountPath": PINS, "readOnly": True})
    return found, mounts


def pins(service: InferenceService) -> Manifest:
    """Returns the ConfigMap of the pinned prefixes, without metadata that all children have."""
    return object_of(
        CONFIG_MAP,
        {
            "name": _name(service.name, service.spec.cache),
            "labels": names.labels(service.name, names.ENGINE),
        },
        data={PINS_FILE: _file(service.spec.cache)},
        immutable=True,
    )


def _bytes(value: int | str) -> Fraction:
    return quantity.parse(value) or quantity.ZERO


def _disk(disk: Disk) -> Manifest:
    if not disk.storage_class_name:
        return {"emptyDir": {"sizeLimit": disk.size}}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": disk.storage_class_name,
        "resources": {"requests": {"storage": disk.size}},
    }
    return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}


def _name(service: str, cache: Cache) -> str:
    return names.pins(service, fingerprint(_file(cache)))


def _file(cache: Cache) -> str:
    """Returns what the engine reads: a JSON object a line."""
    return "".join(f"{_line(prefix)}\n" for prefix in cache.pinned_prefixes)


def _line(prefix: Prefix) -> str:
    fields: Manifest = {"text": prefix.text}
    if prefix.text is None:
        fields = {"messages": [{"role": m.role, "content": m.content} for m in prefix.messages]}
    if prefix.cache_salt:
        fields["cache_salt"] = prefix.cache_salt
    if prefix.ttl_seconds is not None:
        fields["ttl_s"] = prefix.ttl_seconds
    return msgspec.json.encode(fields).decode()
