"""Convert a dashboard to Grafana's JSON: its variables, its links, and the positions of its panels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from generate import marks
from generate.panels import AGENT_PAGE, SOURCE, panel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from generate.model import Dashboard, Panel, Row

Json = dict[str, Any]

#: Dashboard schema version of Grafana 11. Newer versions of Grafana migrate dashboards when they load them.
_SCHEMA_VERSION: Final = 39
_WIDTH: Final = 24
TAG: Final = "innoscope"

_ON_TIME_CHANGE: Final = 2
_ALPHABETICAL: Final = 1


def dashboard(one: Dashboard, titles: Mapping[str, str]) -> Json:
    """Return the dashboard's JSON. ``titles`` maps the uids of all dashboards to their titles."""
    return {
        "uid": one.uid,
        "title": one.title,
        "description": one.description,
        "tags": list(one.tags),
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "annotations": {"list": list(marks.of(one))},
        "templating": {"list": list(_variables(one))},
        "links": list(_links(one)),
        "panels": list(_placed(one, titles)),
    }


def _variables(one: Dashboard) -> Iterator[Json]:
    yield {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "hide": 0,
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "options": [],
    }
    yield _variable("job", "label_values(innoscope_build_info, job)", everything=True)
    yield _variable("instance", 'label_values(innoscope_build_info{job=~"$job"}, instance)',
                    everything=not one.one_server)  # fmt: skip
    among = 'innoscope_collector_success{job=~"$job", instance=~"$instance"}'
    yield _variable("server", f"label_values({among}, server)", everything=not one.one_server)


def _variable(name: str, query: str, *, everything: bool) -> Json:
    """Return a variable that initially selects all values if ``everything`` is set, else the first one."""
    chosen: Json = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        "name": name,
        "label": name.title(),
        "type": "query",
        "datasource": dict(SOURCE),
        "query": {"qryType": 5, "query": query, "refId": f"PrometheusVariableQueryEditor-{name}"},
        "regex": "",
        "hide": 0,
        "refresh": _ON_TIME_CHANGE,
        "sort": _ALPHABETICAL,
        "multi": True,
        "includeAll": everything,
        "allValue": ".+",
        "options": [],
        **({"current": chosen} if everything else {}),
    }


def _links(one: Dashboard) -> Iterator[Json]:
    common = {"icon": "external link", "asDropdown": False, "tooltip": "", "url": "", "tags": []}
    yield {
        **common,
        "title": "Innoscope",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }
    if one.one_server:
        yield {
            **common,
            "title": "Top statements and stacks",
            "type": "link",
            "url": AGENT_PAGE,
            "tooltip": "The agent's page: statements, stacks, findings and probes of this server, live",
            "includeVars": False,
            "keepTime": False,
            "targetBlank": True,
        }


def _placed(one: Dashboard, titles: Mapping[str, str]) -> Iterator[Json]:
    number, y = 0, 0
    for row in one.rows:
        number += 1
        heading: Json = _heading(row, number, y)
        panels: list[Json] = []
        for each, position in _positions(row, y + 1):
            number += 1
            panels.append(panel(each, number, position, titles))
        if row.collapsed:
            yield {**heading, "panels": panels}
            y += 1
        else:
            yield heading
            yield from panels
            y = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in panels)


def _heading(row: Row, number: int, y: int) -> Json:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": row.collapsed,
        "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        "panels": [],
    }


def _positions(row: Row, y: int) -> Iterator[tuple[Panel, Mapping[str, int]]]:
    """Yield the panels with their positions, left to right, in as many lines as needed."""
    x, height = 0, 0
    for each in row.panels:
        if x + each.width > _WIDTH:
            x, y, height = 0, y + height, 0
        yield each, {"x": x, "y": y, "w": each.width, "h": each.height}
        x, height = x + each.width, max(height, each.height)
