"""Query the data of a panel."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grafana

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus import Prometheus

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: its name in the legend, and a value or NaN for each time of the source."""

    name: str
    labels: Mapping[str, str]
    values: list[float]

    @property
    def last(self) -> float:
        """Return the newest value that is not NaN; NaN if there is none."""
        return next((value for value in reversed(self.values) if not math.isnan(value)), math.nan)


@dataclass(frozen=True)
class Source:
    """A time span of the data in Prometheus, and the selected values of the dashboard's variables."""

    prometheus: Prometheus
    start: float
    end: float
    step: float
    interval: str
    chosen: Mapping[str, str]

    @property
    def times(self) -> list[float]:
        """Return the times of a range query, as Unix time."""
        return [
            self.start + index * self.step for index in range(int((self.end - self.start) / self.step) + 1)
        ]

    def series(self, panel: Json) -> list[Series]:
        """Return all lines of a panel, in the order of its queries."""
        return [one for target in panel["targets"] for one in self._of_target(target)]

    def _of_target(self, target: Json) -> Iterator[Series]:
        found = self.prometheus.range(self._query(target), self.start, self.end, self.step)
        for one in sorted(found, key=lambda one: sorted(one["metric"].items())):
            at = {round((float(time) - self.start) / self.step): float(text) for time, text in one["values"]}
            values = [at.get(index, math.nan) for index in range(len(self.times))]
            yield Series(_named(target["legendFormat"], one["metric"]), one["metric"], values)

    def rows(self, panel: Json) -> list[dict[str, str | float]]:
        """Return the rows of a table panel as ``{field: value}``: its queries' results, merged by labels."""
        merged: list[dict[str, str | float]] = []
        for target in panel["targets"]:
            field = f"Value #{target['refId']}" if len(panel["targets"]) > 1 else "Value"
            for one in self.prometheus.instant(self._query(target), self.end):
                _merge(merged, one["metric"], field, float(one["value"][1]))
        return merged

    def _query(self, target: Json) -> str:
        return grafana.filled(target["expr"], interval=self.interval, **self.chosen)


def _merge(rows: list[dict[str, str | float]], labels: Mapping[str, str], field: str, value: float) -> None:
    for row in rows:
        if field not in row and all(row.get(name) == text for name, text in labels.items()):
            row[field] = value
            return
    rows.append({**labels, field: value})


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), legend).strip()
