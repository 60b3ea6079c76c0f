"""Writes what of charts/octavo is made from code; `--check` says whether it is current.

The CustomResourceDefinition comes from the operator, the schema and the README's table from
values.yaml, dashboards and alerts from `tools.dashboards` and `tools.alerts`. Run from the root as
`python -m tools.gen_chart`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from tools import alerts, dashboards
from tools.chart_values import Json, Value, read, schema, shown_type
from tools.gen_docs import table

from octavo.operator import crd

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "octavo"

CRD = """\
{{{{- /* Made by `make docs` from octavo.operator.crd; do not edit. */}}}}
{{{{- if .Values.crds.enabled }}}}
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {name}
  labels:
    {{{{- include "octavo.labels" (list . "crd") | nindent 4 }}}}
  {{{{- if .Values.crds.keep }}}}
  annotations:
    helm.sh/resource-policy: keep
  {{{{- end }}}}
{spec}{{{{- end }}}}
"""


def main() -> int:
    """Writes or checks all files; returns the exit status."""
    check = "--check" in sys.argv
    stale = []
    for path, text in files().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale, run make docs:' if check else 'written:'} {stale}")
    return 1 if stale and check else 0


def files() -> dict[Path, str]:
    """Returns the wanted content of each file."""
    values = read((CHART / "values.yaml").read_text(encoding="utf-8"))
    renamed = yaml.safe_load((CHART / "files" / "renamed.yaml").read_text(encoding="utf-8"))
    return {
        CHART / "values.schema.json": as_json(schema(values, renamed)),
        CHART / "README.md": readme(values),
        CHART / "templates" / "crd.yaml": crd_template(),
        CHART / "files" / "alerts.yaml": alerts.rules(),
        ROOT / "docs" / "alerts.md": alerts.page(),
        **{
            CHART / "files" / "dashboards" / f"{board.name}.json": as_json(board.as_json())
            for board in dashboards.ALL
        },
    }


def as_json(value: Json) -> str:
    """Returns JSON as it is committed."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def readme(values: list[Value]) -> str:
    """Returns the README: what is written by hand, and the table of all values."""
    written, heading, _ = (CHART / "README.md").read_text("utf-8").partition("\n## Values\n")
    if not heading:
        raise ValueError("README.md has no heading Values")
    rows = (
        (f"`{value.key}`", shown_type(value), f"`{json.dumps(value.default)}`", value.doc)
        for value in values
    )
    values_table = table(("value", "type", "default", "meaning"), rows)
    return f"{written}{heading}\nMade by `make docs` from values.yaml.\n\n{values_table}"


def crd_template() -> str:
    """Returns the template of the CustomResourceDefinition."""
    definition = crd.definition()
    text = yaml.safe_dump({"spec": definition["spec"]}, sort_keys=False, width=100)
    if "{{" in text:
        raise ValueError("the definition's text would be taken for a template")
    return CRD.format(name=definition["metadata"]["name"], spec=text)


if __name__ == "__main__":
    sys.exit(main())
