"""Define the marks in all graphs of a dashboard: restarts, toggles, incidents and alerts.

Grafana turns each query into events (packages/grafana-prometheus/src/annotations.ts). If the value is the
time, there is one event per value. Otherwise, consecutive values above 0 become one region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from generate.queries import OWN, SERVER, series

if TYPE_CHECKING:
    from collections.abc import Iterator

    from generate.model import Dashboard

Json = dict[str, Any]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WHERE: Final = "{{server}} on {{instance}}"
_STEP: Final = "15s"


def of(one: Dashboard) -> Iterator[Json]:
    """Yield the annotations. On dashboards of many servers, toggles are initially off: they may be many."""
    yield _event("Restarts", "blue", f"{series('mysqld_start_time_seconds')} * 1000",
                 "Server started", _WHERE)  # fmt: skip
    toggled = f"{series('toggle_since_timestamp_seconds')} * 1000"
    yield _event("Toggles", "purple", toggled, "Changed: {{toggle}}", _WHERE, enable=one.one_server)
    captured = f"{series('incident_timestamp_seconds')} * 1000 > 0"
    yield _event("Incidents", "orange", captured, "Incident captured", _WHERE)
    scope = SERVER if one.one_server else OWN  # alerts about agents have no ``server`` label
    alerts = f'ALERTS{{alertstate="firing", {scope}}}'
    yield _annotation("Alerts", "red", alerts, "{{alertname}}", f"{{{{severity}}}}: {_WHERE}")


def _event(name: str, color: str, expr: str, title: str, text: str, *, enable: bool = True) -> Json:
    """Return an annotation whose query yields times in milliseconds."""
    return _annotation(name, color, expr, title, text) | {"useValueForTime": True, "enable": enable}


def _annotation(name: str, color: str, expr: str, title: str, text: str) -> Json:
    """Return an annotation. Older versions of Grafana read ``expr`` and ``step``, newer ones ``target``."""
    return {
        "name": name,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "datasource": dict(_SOURCE),
        "expr": expr,
        "step": _STEP,
        "target": {"refId": "Anno", "expr": expr, "interval": _STEP},
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": False,
    }
