"""Read panels and queries from the committed dashboards, and replace variables in queries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[1] / "dashboards" / "grafana"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """One query of a panel."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool

    def __str__(self) -> str:
        return f"{self.dashboard} / {self.panel} / {self.ref}"


def dashboards() -> dict[str, Json]:
    """Return all dashboards by uid."""
    read = (json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json")))
    return {one["uid"]: one for one in read}


def panels(dashboard: Json) -> Iterator[Json]:
    """Yield the panels that show data, including those in collapsed rows."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def targets() -> list[Target]:
    """Return all queries of all dashboards."""
    return [
        Target(uid, panel["title"], target["refId"], target["expr"], target["instant"])
        for uid, dashboard in dashboards().items()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def filled(expr: str, *, interval: str = "1m", **chosen: str) -> str:
    """Return the query as Grafana would send it: variables that are not in ``chosen`` match all values."""
    values = {"job": ".+", "instance": ".+", "server": ".+", **chosen}
    expr = expr.replace("$__rate_interval", interval)
    for name, value in values.items():
        expr = expr.replace(f"${name}", value)
    return expr
