"""Reads the chart's values.yaml: the JSON schema and the README's table come from its comments.

A line `# -- text` above a key documents it; a line `# @schema …` says what its default cannot: a
word of `WORDS`, `k8s:Type`, `k8s:Type[]`, or keywords of JSON schema as a YAML mapping. A key
without documentation is a section. Every object is closed, Kubernetes' own ones included, so that
a typing error fails at any depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import kubernetes_validate
import yaml

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Schema: TypeAlias = dict[str, Json]

KUBERNETES = "v1.34.0"
"""The release whose types pod settings are checked by."""

WORDS: dict[str, Schema] = {
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "strings": {"type": "array", "items": {"type": "string", "minLength": 1}},
    "objects": {"type": "array", "items": {"type": ["object", "string"]}},
    "ports": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65535}},
    "countOrPercent": {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": "^(100|[1-9]?[0-9])%$"},
        ]
    },
}
"""Types that values share."""

RESTRICTED_VOLUMES = frozenset(
    (
        "name",
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "persistentVolumeClaim",
        "projected",
        "secret",
    )
)
"""What a volume may be under the level `restricted` of pod security; ephemeral claims left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One documented value.

    Attributes:
        path: its keys from the root.
        doc: what it means.
        default: what it is when nobody sets it.
        hint: what `@schema` says; empty if the default says it all.
    """

    path: tuple[str, ...]
    doc: str
    default: Json
    hint: str

    @property
    def key(self) -> str:
        """The path as people write it."""
        return ".".join(self.path)


def read(text: str) -> list[Value]:
    """Returns the values of a values.yaml in its order."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise TypeError("values.yaml is no mapping")
    return list(_values(root, text.splitlines(), ()))


def _values(node: yaml.MappingNode, lines: list[str], above: tuple[str, ...]) -> Iterator[Value]:
    for key, value in node.value:
        path = (*above, key.value)
        doc, hint = _comment(lines, key.start_mark.line)
        if doc:
            yield Value(path=path, doc=doc, hint=hint, default=_constructed(value))
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, lines, path)
        else:
            raise ValueError(f"{'.'.join(path)} is not documented")


def _constructed(node: yaml.Node) -> Json:
    default: Json = yaml.safe_load(yaml.serialize(node))
    return default


def _comment(lines: list[str], line: int) -> tuple[str, str]:
    """Returns documentation and hint of the comment that ends above a line."""
    docs: list[str] = []
    hint = ""
    while line > 0 and (comment := lines[line - 1].strip()).startswith("# "):
        line -= 1
        if comment.startswith("# -- "):
            docs.insert(0, comment.removeprefix("# -- "))
        elif comment.startswith("# @schema "):
            hint = comment.removeprefix("# @schema ")
    return " ".join(docs), hint


def schema(values: list[Value], renamed: Mapping[str, str]) -> Schema:
    """Returns the JSON schema of all values.

    Args:
        values: what there is.
        renamed: former names and the present ones; they pass, because a template refuses them
            with a better sentence.
    """
    definitions: Schema = {}
    root: Schema = {"$schema": "http://json-schema.org/draft-07/schema#", **_section()}
    for value in values:
        parent = _parent(root, value.path)
        parent[value.path[-1]] = {"description": value.doc, **_typed(value, definitions)}
    for name, present in renamed.items():
        path = tuple(name.split("."))
        _parent(root, path)[path[-1]] = {"description": f"Former name of `{present}`."}
    _properties(root)["global"] = {"type": "object", "description": "What parent charts share."}
    root["definitions"] = dict(sorted(definitions.items()))
    return root


def _section() -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _properties(section: Schema) -> Schema:
    properties = section["properties"]
    assert isinstance(properties, dict)
    return properties


def _parent(root: Schema, path: tuple[str, ...]) -> Schema:
    """Returns the properties that a path's last key belongs to, making the sections above it."""
    for key in path[:-1]:
        section = _properties(root).setdefault(key, _section())
        assert isinstance(section, dict)
        root = section
    return _properties(root)


def _typed(value: Value, definitions: Schema) -> Schema:
    hint = value.hint
    if hint in WORDS:
        return WORDS[hint]
    if hint.startswith("k8s:"):
        name = hint.removeprefix("k8s:")
        reference = _define(_full_name(name.removesuffix("[]")), definitions)
        return {"type": "array", "items": reference} if name.endswith("[]") else reference
    own: Schema = yaml.safe_load(hint) if hint else {}
    return _inferred(value) | own


def _inferred(value: Value) -> Schema:
    """Returns the type of a default; what has no obvious one needs a hint."""
    match value.default:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case str():
            return {"type": "string"}
    if not value.hint:
        raise ValueError(f"{value.key} needs @schema")
    return {}


def _kubernetes() -> dict[str, Schema]:
    """Returns Kubernetes' own types, every object closed."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    text = (folder / f"{KUBERNETES}-local-strict" / "_definitions.json").read_text("utf-8")
    types: dict[str, Schema] = json.loads(text)["$defs"]
    return types


_TYPES = _kubernetes()


def _full_name(short: str) -> str:
    """Returns a type's full name; of equal short names that of the newest stable group."""
    stable = [
        name
        for name in _TYPES
        if name.endswith(f".{short}") and "alpha" not in name and "beta" not in name
    ]
    return max(stable)


def _define(name: str, definitions: Schema) -> Schema:
    """Adds a type and all that it refers to; returns the reference to it."""
    short = name.rpartition(".")[2]
    if short not in definitions:
        definitions[short] = {}  # before it is filled: types refer to themselves
        content = _TYPES[name]
        if short == "Volume":
            allowed = {k: v for k, v in _properties(content).items() if k in RESTRICTED_VOLUMES}
            content = content | {"properties": allowed}
        definitions[short] = _copied(content, definitions)
    return {"$ref": f"#/definitions/{short}"}


def _copied(node: Json, definitions: Schema) -> Json:
    """Returns a schema without its texts, its references brought along."""
    if isinstance(node, list):
        return [_copied(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if isinstance(reference := node.get("$ref"), str):
        return dict(_define(reference.rpartition("/")[2], definitions))
    return {
        key: _copied(value, definitions)
        for key, value in node.items()
        if not (key == "description" and isinstance(value, str))
        and not key.startswith("x-kubernetes")
        and key != "format"
    }


def shown_type(value: Value) -> str:
    """Returns the type as the README's table says it."""
    if value.hint.startswith("k8s:"):
        return value.hint.removeprefix("k8s:")
    if value.hint in WORDS:
        return {"countOrPercent": "integer or percent"}.get(value.hint, value.hint)
    typed = _typed(value, {})
    if isinstance(choices := typed.get("enum"), list):
        return ", ".join(map(str, choices))
    kind = typed.get("type")
    return " or ".join(map(str, kind)) if isinstance(kind, list) else str(kind)
