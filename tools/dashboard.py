"""What a Grafana dashboard is made of, the usual expressions, and how it becomes Grafana's JSON.

Every dashboard has the variables `datasource`, `namespace` and `model`. Knows no metric.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.chart_values import Json

PANELS_A_ROW = 3
WIDTH, HEIGHT = 8, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph.

    Attributes:
        title: its heading.
        about: what one learns from it.
        unit: a unit as Grafana names it.
        lines: expressions, each with its legend.
    """

    title: str
    about: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One dashboard; its uid is `octavo-` and its name."""

    name: str
    title: str
    about: str
    model_metric: str
    """Metric and label that list the models."""
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]

    def as_json(self) -> Json:
        """Returns the dashboard as Grafana imports it."""
        metric, label = self.model_metric.split("/")
        return {
            "uid": f"octavo-{self.name}",
            "title": f"Octavo / {self.title}",
            "description": self.about,
            "tags": ["octavo"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {
                "list": [
                    {
                        "name": "datasource",
                        "label": "Data source",
                        "type": "datasource",
                        "query": "prometheus",
                    },
                    _variable("namespace", f"label_values({metric}, namespace)"),
                    _variable(
                        "model", f'label_values({metric}{{namespace=~"$namespace"}}, {label})'
                    ),
                ]
            },
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        panels: list[Json] = []
        top = 0
        for title, row in self.rows:
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "row",
                    "title": title,
                    "collapsed": False,
                    "gridPos": {"x": 0, "y": top, "w": WIDTH * PANELS_A_ROW, "h": 1},
                    "panels": [],
                }
            )
            for index, panel in enumerate(row):
                x, y = index % PANELS_A_ROW * WIDTH, top + 1 + index // PANELS_A_ROW * HEIGHT
                panels.append(_panel(panel, len(panels) + 1, x, y))
            top += 1 + -(-len(row) // PANELS_A_ROW) * HEIGHT
        return panels


def _variable(name: str, query: str) -> Json:
    return {
        "name": name,
        "type": "query",
        "datasource": _source(),
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _source() -> Json:
    return {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _source(),
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi"}, "legend": {"displayMode": "list"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.lines)
        ],
    }


def rate(metric: str, labels: str, *by: str) -> str:
    """Returns the summed rate of a counter."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped}(rate({metric}{{{labels}}}[$__rate_interval]))"


def share(part: str, whole: str, labels: str, *by: str) -> str:
    """Returns the share that one counter is of another; both are summed first."""
    return f"{rate(part, labels, *by)} / {rate(whole, labels, *by)}"


def total(gauge: str, labels: str, *by: str) -> str:
    """Returns the sum of a gauge."""
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped}({gauge}{{{labels}}})"


def quantiles(histogram: str, labels: str) -> tuple[tuple[str, str], ...]:
    """Returns median, p90 and p99 of a histogram."""
    return tuple(
        (f"histogram_quantile({q}, {rate(f'{histogram}_bucket', labels, 'le')})", name)
        for q, name in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"))
    )
