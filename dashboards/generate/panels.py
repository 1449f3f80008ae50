"""Convert a panel to Grafana's JSON."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from generate.model import Bands, Column, Panel, Step, Steps

Json = dict[str, Any]

#: Version of the panel format. Newer versions of Grafana migrate panels when they load them.
_PLUGIN_VERSION: Final = "11.0.0"
SOURCE: Final[Mapping[str, str]] = {"type": "prometheus", "uid": "${datasource}"}
#: URL of the agent's live page, which shows the stacks and the top statements (by digest) of the selected
#: server. It is valid only if a single instance is selected.
AGENT_PAGE: Final = "http://${instance}/#server=${server:percentencode}"
#: URL query that passes the selected variables and the time range to another dashboard.
_KEPT: Final = "&".join(
    (
        "${__url_time_range}",
        *(f"${{{name}:queryparam}}" for name in ("datasource", "job", "instance", "server")),
    )
)
#: A legend that explains colors. The series of a state timeline have no values to show.
_STATES: Final = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
#: A legend with the last and the highest value of each series, highest first.
_LEGEND: Final = {
    "calcs": ["lastNotNull", "max"],
    "displayMode": "table",
    "placement": "bottom",
    "showLegend": True,
    "sortBy": "Max",
    "sortDesc": True,
}
#: Panels that are at least this wide have their legend on the right.
_WIDE: Final = 12
#: The end of a range without an end. Grafana compares a missing end as if it were 0 (getValueMappingResult in
#: grafana-data/src/utils/valueMappings.ts).
_NO_END: Final = 10**15
_REDUCED: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def panel(one: Panel, number: int, position: Mapping[str, int], titles: Mapping[str, str]) -> Json:
    """Return the panel's JSON. ``titles`` maps the uids of all dashboards to their titles."""
    make = {
        "timeseries": _timeseries, "stat": _stat, "table": _table, "heatmap": _heatmap,
        "state-timeline": _state_timeline,
    }[one.kind]  # fmt: skip
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": _description(one, titles),
        "datasource": dict(SOURCE),
        "gridPos": dict(position),
        "pluginVersion": _PLUGIN_VERSION,
        "links": [_link(step, titles) for step in one.then if step.dashboard or step.agent],
        "targets": [
            _target(one, ref, index) for index, ref in enumerate(ascii_uppercase[: len(one.queries)])
        ],
        **make(one),
    }


def _description(one: Panel, titles: Mapping[str, str]) -> str:
    where = "; ".join(_words(step, titles) for step in one.then)
    return f"{one.shows}\n\n**Bad:** {one.bad}\n\n**Next:** {where}."


def _words(step: Step, titles: Mapping[str, str]) -> str:
    if step.dashboard:
        return f"dashboard *{titles[step.dashboard]}*"
    if step.agent:
        return "the agent's page, which has the stacks and the top statements"
    return f"`{step.command}`" if step.command else f"docs/{step.page}"


def _link(step: Step, titles: Mapping[str, str]) -> Json:
    return {
        "title": titles[step.dashboard] if step.dashboard else "Stacks and top statements (the agent's page)",
        "type": "link",
        "url": f"/d/{step.dashboard}?{_KEPT}" if step.dashboard else AGENT_PAGE,
        "icon": "dashboard",
        "tooltip": "",
        "tags": [],
        "asDropdown": False,
        "includeVars": False,
        "keepTime": False,
        "targetBlank": step.agent,
    }  # fmt: skip


def _target(one: Panel, ref: str, index: int) -> Json:
    query = one.queries[index]
    mode: Json = {"range": True, "instant": False}
    if one.kind == "table":
        mode = {"range": False, "instant": True, "format": "table"}
    elif one.kind == "heatmap":
        mode["format"] = "heatmap"
    return {
        "refId": ref,
        "datasource": dict(SOURCE),
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend,
        **mode,
    }


def _thresholds(steps: Steps) -> Json:
    chosen = steps or ((None, "green"),)
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in chosen]}


def _field(one: Panel, custom: Json, color: Json) -> Json:
    defaults: Json = {
        "unit": one.unit,
        "color": color,
        "custom": custom,
        "thresholds": _thresholds(one.steps),
        "mappings": _mappings(one.bands),
    }
    if one.least is not None and one.kind == "timeseries":
        defaults["min"] = one.least
    if one.most is not None:
        defaults["max"] = one.most
    return defaults


def _mappings(bands: Bands) -> list[Json]:
    """Return the mappings of values to labels, highest first. Grafana uses the first one that matches."""
    found: list[Json] = []
    end: float = _NO_END
    for low, text, color in reversed(bands):
        result = {"text": text, "color": color, "index": len(found)}
        found.append({"type": "range", "options": {"from": low, "to": end, "result": result}})
        end = low
    return found


def _timeseries(one: Panel) -> Json:
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 60 if one.stacked else 10,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if one.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "area" if one.steps else "off"},
    }
    overrides = [_line(name) for name in one.lines]
    overrides += [_override(name, {"color": _fixed(color)}) for name, color in one.colors]
    defaults = _field(one, custom, {"mode": "palette-classic"})
    return {
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {"legend": _legend(one), "tooltip": {"mode": "multi", "sort": "desc"}},
    }


def _legend(one: Panel) -> Json:
    return {**_LEGEND, "placement": "right" if one.width >= _WIDE else "bottom"}


def _line(name: str) -> Json:
    """Return the overrides that draw a limit as a red dashed line, neither stacked nor filled."""
    values: Json = {
        "custom.stacking": {"mode": "none", "group": "A"},
        "custom.fillOpacity": 0,
        "custom.lineStyle": {"fill": "dash", "dash": [10, 10]},
        "color": _fixed("red"),
    }
    return _override(name, values)


def _fixed(color: str) -> Json:
    return {"mode": "fixed", "fixedColor": color}


def _override(name: str, values: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in values.items()],
    }


def _stat(one: Panel) -> Json:
    return {
        "fieldConfig": {"defaults": _field(one, {}, {"mode": "thresholds"}), "overrides": []},
        "options": {
            "graphMode": "none" if one.bands else "area",
            "colorMode": "value",
            "justifyMode": "auto",
            "textMode": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
            "orientation": "auto",
            "reduceOptions": dict(_REDUCED),
        },
    }


def _state_timeline(one: Panel) -> Json:
    return {
        "fieldConfig": {
            "defaults": _field(one, {"lineWidth": 0, "fillOpacity": 80}, {"mode": "thresholds"}),
            "overrides": [],
        },
        "options": {
            "showValue": "never",
            "mergeValues": True,
            "alignValue": "left",
            "rowHeight": 0.8,
            "legend": dict(_STATES),
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }


def _heatmap(one: Panel) -> Json:
    hidden = {"tooltip": False, "legend": False, "viz": False}
    custom = {"hideFrom": hidden, "scaleDistribution": {"type": "linear"}}
    return {
        "fieldConfig": {"defaults": {"custom": custom}, "overrides": []},
        "options": {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "scale": "exponential",
                "exponent": 0.5, "steps": 64, "reverse": False,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto", "value": "per second"},
            "showValue": "never",
            "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
            "yAxis": {"axisPlacement": "left", "reverse": False, "unit": one.unit},
        },
    }  # fmt: skip


def _table(one: Panel) -> Json:
    custom = {"align": "auto", "inspect": False, "cellOptions": {"type": "auto"}}
    names = {column.field: column.title for column in one.columns}
    order = {column.field: index for index, column in enumerate(one.columns)}
    organized = {
        "indexByName": order,
        "renameByName": names,
        "includeByName": dict.fromkeys(order, True),
        "excludeByName": {"Time": True},
    }
    sort = [{"displayName": title, "desc": True} for title in one.sort]
    return {
        "fieldConfig": {
            "defaults": _field(one, custom, {"mode": "thresholds"}),
            "overrides": [
                _override(column.title, special) for column in one.columns if (special := _of_column(column))
            ],
        },
        "options": {"showHeader": True, "cellHeight": "sm", "frameIndex": 0, "sortBy": sort},
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organized}],
    }  # fmt: skip


def _of_column(column: Column) -> Json:
    found: Json = {}
    if column.unit:
        found["unit"] = column.unit
    if column.steps:
        found["thresholds"] = _thresholds(column.steps)
        found["custom.cellOptions"] = {"type": "color-text"}
    if column.bands:
        found["mappings"] = _mappings(column.bands)
        found["custom.cellOptions"] = {"type": "color-text"}
    if column.link:
        found["links"] = [{"title": "Open", "url": column.link, "targetBlank": False}]
    return found
