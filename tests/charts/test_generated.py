from __future__ import annotations

import re
import tomllib

import yaml
from tests.charts.rendering import CHART, RELEASED, VERSION, only, render, version_of
from tools.gen_chart import ROOT, files

from octavo.operator import crd


def test_files_of_the_repository_are_current() -> None:
    stale = [
        str(path.relative_to(ROOT))
        for path, text in files().items()
        if not path.exists() or path.read_text("utf-8") != text
    ]
    assert stale == [], "run make docs"


def test_installed_definition_is_the_operator_s() -> None:
    definition = crd.definition()
    installed = only(render(), "CustomResourceDefinition", definition["metadata"]["name"])
    assert installed["spec"] == definition["spec"]


def test_every_value_is_in_the_readme() -> None:
    page = (CHART / "README.md").read_text("utf-8")

    def leaves(node: object, path: str) -> list[str]:
        if isinstance(node, dict) and node and f"| `{path}` |" not in page:
            return [leaf for key, value in node.items() for leaf in leaves(value, f"{path}.{key}")]
        return [path]

    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    missing = [
        leaf
        for key, value in defaults.items()
        for leaf in leaves(value, key)
        if f"| `{leaf}` |" not in page
    ]
    assert missing == []


def test_chart_speaks_of_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {chart["version"], chart["appVersion"], VERSION} == {project["version"]}


def test_the_charts_of_all_released_versions_are_kept() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    versions = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)
    assert versions == [version_of(chart) for chart in reversed(RELEASED)]
    assert VERSION not in versions
