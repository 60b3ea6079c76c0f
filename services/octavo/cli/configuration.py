"""`octavo config`: the effective settings as text or JSON."""

from __future__ import annotations

import json

from octavo.cli.settings import GROUPS, KNOWN, ServeSettings
from octavo.runtime.arguments import shown_default
from octavo.runtime.settings import doc_of, env_of, flag_of, names, reject_unknown


def show(settings: ServeSettings, *, origin: bool, as_json: bool) -> str:
    """Returns all effective settings, with where each comes from if asked."""
    rows = settings.rows()
    if as_json:
        return json.dumps(
            {
                name: {"value": value, "origin": where} if origin else value
                for name, value, where in rows
            },
            indent=2,
        )
    width = max(len(name) for name, _, _ in rows)
    lines = [(f"{name:<{width}}  {written(value)}", where) for name, value, where in rows]
    if not origin:
        return "\n".join(text for text, _ in lines)
    column = min(max(len(text) for text, _ in lines), 60)
    return "\n".join(f"{text:<{column}}  {where}" for text, where in lines)


def explain(settings: ServeSettings, key: str, *, as_json: bool) -> str:
    """Returns what a setting means; raises UNKNOWN_SETTING with the nearest name."""
    name = key.removeprefix("--").removeprefix("OCTAVO_").replace("-", "_").lower()
    reject_unknown([name], KNOWN, "config explain")
    cls = next(cls for cls in GROUPS.values() if name in names(cls))
    doc = doc_of(cls, name)
    facts = {
        "meaning": doc.help,
        "unit": doc.unit,
        "range": written_range(doc.minimum, doc.maximum),
        "choices": ", ".join(doc.choices),
        "default": shown_default(cls, name),
        "flag": flag_of(name),
        "variable": env_of(name),
        "file key": name,
    }
    for row_name, value, where in settings.rows():
        if row_name == name:
            facts["now"] = f"{written(value)}  ({where})"
    if as_json:
        return json.dumps({"key": name} | facts, indent=2)
    return "\n".join([name, *(f"  {k:<9} {v}" for k, v in facts.items() if v)])


def written(value: object) -> str:
    """Returns a value as the reader would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(value) or "empty"
    return str(value) if value != "" else "empty"


def written_range(minimum: float | None, maximum: float | None) -> str:
    """Returns "1 to 64", "at least 1", "at most 64" or nothing."""
    if minimum is not None and maximum is not None:
        return f"{minimum:g} to {maximum:g}"
    if minimum is not None:
        return f"at least {minimum:g}"
    return f"at most {maximum:g}" if maximum is not None else ""
