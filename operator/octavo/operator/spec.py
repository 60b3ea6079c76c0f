"""An InferenceService as typed values, and what is wrong with one that cannot be.

The API server has checked it against the schema and filled in defaults. What is checked here again
are resources stored under an older schema: they get a condition, and never more than that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from octavo.operator import model_uri, names, quantity, structural
from octavo.operator.kinds import Manifest
from octavo.operator.model_uri import ModelUri
from octavo.operator.observed import Reference, annotation
from octavo.operator.options import OPTIONS, OURS
from octavo.runtime.certificates import AUTHORITIES, CERTIFICATE, KEY

_TLS_KEYS: Final = (AUTHORITIES, CERTIFICATE, KEY)
"""What a Secret for TLS has."""


class Named(msgspec.Struct, frozen=True, rename="camel"):
    """A reference to an object in the same namespace."""

    name: str


class Key(msgspec.Struct, frozen=True, rename="camel"):
    """A key of a Secret or ConfigMap."""

    name: str
    key: str


class ValueFrom(msgspec.Struct, frozen=True, rename="camel"):
    """Where a variable's value comes from."""

    secret_key_ref: Key | None = None
    config_map_key_ref: Key | None = None


class Variable(msgspec.Struct, frozen=True, rename="camel"):
    """An environment variable."""

    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class Model(msgspec.Struct, frozen=True, rename="camel"):
    """What is served."""

    uri: str
    revision: str = ""
    served_names: tuple[str, ...] = ()
    secret_ref: Named | None = None

    @property
    def source(self) -> ModelUri:
        """The URI, which is valid."""
        return ModelUri(text=self.uri)

    @property
    def key(self) -> str:
        """What stands for the model in names and paths."""
        return self.source.key(self.revision)


class Tls(msgspec.Struct, frozen=True, rename="camel"):
    """Where the certificate of the engines is, and the authorities that they trust."""

    secret_name: str


class Engine(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The pods that serve it. Parts of a pod are as the user wrote them."""

    device: str
    image_pull_policy: str
    image: str = ""
    image_pull_secrets: list[Manifest] = []
    options: dict[str, Any] = {}
    tls: Tls | None = None
    extra_args: tuple[str, ...] = ()
    env: tuple[Variable, ...] = ()
    resources: dict[str, dict[str, int | str]] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[Manifest] = []
    affinity: Manifest = {}
    topology_spread_constraints: list[Manifest] = []
    priority_class_name: str = ""
    runtime_class_name: str = ""
    service_account_name: str = ""
    pod_security_context: Manifest = {}
    pod_labels: dict[str, str] = {}
    pod_annotations: dict[str, str] = {}


class Autoscaling(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How the operator decides how many engines run."""

    min_replicas: int
    max_replicas: int
    target_queue_seconds: float
    idle_seconds: int
    max_step_up: int
    max_step_down: int


class Volume(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The volume that the model is loaded into."""

    size: int | str
    access_mode: str
    storage_class_name: str = ""
    loader_resources: dict[str, dict[str, int | str]] = {}


class Disk(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The disk of each engine for KV blocks."""

    size: int | str
    storage_class_name: str = ""


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """A message of a prefix."""

    role: str
    content: str


class Prefix(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What prompts begin with: text, or else messages."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    cache_salt: str = ""
    ttl_seconds: int | None = None


class Cache(msgspec.Struct, frozen=True, rename="camel"):
    """Where the model is kept, and what engines keep of prompts."""

    volume: Volume | None = None
    host: int | str | None = None
    disk: Disk | None = None
    pinned_prefixes: tuple[Prefix, ...] = ()


class Rollout(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How a change reaches the engines."""

    max_surge: int | str
    max_unavailable: int | str
    drain_seconds: int
    paused: bool
    no_room_seconds: int = 30
    """With the schema's default: another release's, that is older, may not have the field."""


class Spec(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is wanted."""

    model: Model
    engine: Engine
    rollout: Rollout
    replicas: int | None = None
    autoscaling: Autoscaling | None = None
    cache: Cache = Cache()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceService:
    """A valid resource."""

    name: str
    namespace: str
    uid: str
    generation: int
    is_dry_run: bool
    """Whether nothing is to be written but what would be."""
    spec: Spec

    @property
    def full_name(self) -> str:
        """NAMESPACE/NAME, as gateways call it."""
        return f"{self.namespace}/{self.name}"

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that requests may use."""
        return self.spec.model.served_names or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that makes a resource impossible."""

    path: str
    """Where, such as spec.engine.resources.limits.cpu."""
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}"


def parse(resource: Manifest) -> InferenceService | list[Problem]:
    """Returns the typed resource, or all that is wrong with it."""
    meta = resource["metadata"]
    try:
        spec = msgspec.convert(resource.get("spec") or {}, Spec)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        path = "spec" + where.removesuffix("`")
        return [Problem(path=path, sentence=f"{what[:1].lower()}{what[1:]}")]
    problems = [*_name_problems(meta["name"]), *_problems(spec)]
    if problems:
        return problems
    return InferenceService(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=int(meta.get("generation", 0)),
        is_dry_run=annotation(resource, names.DRY_RUN) == "true",
        spec=spec,
    )


def references(resource: Manifest) -> tuple[Reference, ...]:
    """Returns the Secrets and ConfigMaps that a resource needs; none of a bad one."""
    parsed = parse(resource)
    if isinstance(parsed, list):
        return ()
    return (*references_of(parsed.spec), *mounted_by(parsed.spec))


def references_of(spec: Spec) -> tuple[Reference, ...]:
    """Returns the Secrets and ConfigMaps that pods take values from, sorted."""
    found: set[Reference] = set()
    if spec.model.secret_ref:
        found.add(Reference(kind="Secret", name=spec.model.secret_ref.name))
    for source in (variable.value_from for variable in spec.engine.env):
        if source and source.secret_key_ref:
            key = source.secret_key_ref
            found.add(Reference(kind="Secret", name=key.name, key=key.key))
        if source and source.config_map_key_ref:
            key = source.config_map_key_ref
            found.add(Reference(kind="ConfigMap", name=key.name, key=key.key))
    return tuple(sorted(found))


def mounted_by(spec: Spec) -> tuple[Reference, ...]:
    """Returns what pods read while they run: it has to be there, and may change."""
    if spec.engine.tls is None:
        return ()
    name = spec.engine.tls.secret_name
    return tuple(Reference(kind="Secret", name=name, key=key) for key in _TLS_KEYS)


def _name_problems(name: str) -> Iterator[Problem]:
    if sentence := names.problem_of(name):
        yield Problem(path="metadata.name", sentence=sentence)


def _problems(spec: Spec) -> Iterator[Problem]:
    uri = model_uri.parse(spec.model.uri)
    if uri is None:
        forms = ", ".join(model_uri.FORMS.values())
        yield Problem(path="spec.model.uri", sentence=f"is none of {forms}")
    elif uri.is_loaded and spec.cache.volume is None:
        yield Problem(path="spec.cache.volume", sentence=f"{uri.scheme}:// models need its size")
    if spec.replicas is not None and spec.autoscaling is not None:
        yield Problem(path="spec.replicas", sentence="excludes spec.autoscaling; remove one")
    scaling = spec.autoscaling
    if scaling and scaling.min_replicas > scaling.max_replicas:
        yield Problem(path="spec.autoscaling.minReplicas", sentence="is above maxReplicas")
    yield from _quantity_problems(spec)
    yield from _cache_problems(spec)
    yield from _engine_problems(spec.engine)
    yield from _rollout_problems(spec.rollout)


def _quantity_problems(spec: Spec) -> Iterator[Problem]:
    volume = spec.cache.volume
    given = {"spec.engine.resources": spec.engine.resources}
    if volume:
        given["spec.cache.volume.loaderResources"] = volume.loader_resources
    values = [
        (f"{path}.{part}.{resource}", value)
        for path, resources in given.items()
        for part, amounts in resources.items()
        for resource, value in amounts.items()
    ]
    if volume:
        values.append(("spec.cache.volume.size", volume.size))
    if spec.cache.host is not None:
        values.append(("spec.cache.host", spec.cache.host))
    if spec.cache.disk:
        values.append(("spec.cache.disk.size", spec.cache.disk.size))
    for option in OPTIONS:
        if option.is_quantity and option.field in spec.engine.options:
            path = f"spec.engine.options.{option.field}"
            values.append((path, spec.engine.options[option.field]))
    for path, value in values:
        if quantity.parse(value) is None:
            sentence = f"{value!r} is no quantity such as 500m, 20Gi or 2"
            yield Problem(path=path, sentence=sentence)


def _cache_problems(spec: Spec) -> Iterator[Problem]:
    cache = spec.cache
    if cache.host is not None:
        yield from _room_problems(spec.engine, "host", cache.host, "memory")
    if cache.disk:
        # A disk with a class of its own is none of the node's.
        limited = "" if cache.disk.storage_class_name else "ephemeral-storage"
        yield from _room_problems(spec.engine, "disk.size", cache.disk.size, limited)
        if cache.host is None:
            yield Problem(path="spec.cache.disk", sentence="needs spec.cache.host")
    for index, prefix in enumerate(cache.pinned_prefixes):
        if (prefix.text is None) == (not prefix.messages):
            path = f"spec.cache.pinnedPrefixes[{index}]"
            yield Problem(path=path, sentence="has either text or messages")


def _room_problems(engine: Engine, field: str, value: int | str, limited: str) -> Iterator[Problem]:
    size, limit = quantity.parse(value), engine.resources.get("limits", {}).get(limited)
    most = quantity.parse(limit)
    if size == quantity.ZERO:
        yield Problem(path=f"spec.cache.{field}", sentence="has to be above 0")
    if size is not None and most is not None and size >= most:
        sentence = f"{value} leaves nothing of the {limit} of engine.resources.limits.{limited}"
        yield Problem(path=f"spec.cache.{field}", sentence=sentence)


def _engine_problems(engine: Engine) -> Iterator[Problem]:
    for argument in engine.extra_args:
        if argument.partition("=")[0] in OURS:
            sentence = f"{argument} cannot be set: the operator does"
            yield Problem(path="spec.engine.extraArgs", sentence=sentence)
    for path, keys in (
        ("podLabels", engine.pod_labels),
        ("podAnnotations", engine.pod_annotations),
    ):
        for key in keys:
            if key.startswith(names.RESERVED_PREFIXES):
                yield Problem(path=f"spec.engine.{path}", sentence=f"{key} is the operator's own")


def _rollout_problems(rollout: Rollout) -> Iterator[Problem]:
    given = (
        ("maxSurge", rollout.max_surge, structural.SHARE),
        ("maxUnavailable", rollout.max_unavailable, structural.SHARE_OF_ALL),
    )
    for field, value, share in given:
        is_count = isinstance(value, int) and 0 <= value <= structural.MAX_COUNT
        if not is_count and not re.fullmatch(share, str(value)):
            sentence = f"{value!r} is neither a number such as 1 nor a share such as 25%"
            yield Problem(path=f"spec.rollout.{field}", sentence=sentence)
    if not any(str(value).removesuffix("%").strip("0") for _, value, _ in given):
        yield Problem(path="spec.rollout", sentence="maxSurge and maxUnavailable are both 0")
