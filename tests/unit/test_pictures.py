"""The pictures of the dashboards are drawn from the panels' JSON, here with invented data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest
from PIL import Image

import grafana
from generate import states, wait_colors
from pictures import colors, legends
from pictures.data import Series, Source
from pictures.draw import picture

if TYPE_CHECKING:
    from pathlib import Path

    from prometheus import Prometheus

Json = dict[str, Any]
#: Invented values of labels; other labels have the values "one" and "two".
LABELS = {"le": ("0.001", "0.01", "+Inf"), "wait": tuple(sorted(wait_colors.palette()))[:12]}


@dataclass(frozen=True)
class Invented:
    """Answers of a Prometheus server: one series for each value of the labels in the ``by`` clause."""

    def range(self, query: str, start: float, end: float, step: float) -> list[Json]:
        times = [start + index * step for index in range(int((end - start) / step) + 1)]
        return [
            {"metric": labels, "values": [[time, str(self._value(query, row, time))] for time in times]}
            for row, labels in enumerate(self._labels(query))
        ]

    def instant(self, query: str, at: float) -> list[Json]:
        return [
            {"metric": labels, "value": [at, str(self._value(query, row, at))]}
            for row, labels in enumerate(self._labels(query))
        ]

    @staticmethod
    def _labels(query: str) -> list[dict[str, str]]:
        grouped = re.findall(r"by \(([\w, ]+)\)", query)
        names = grouped[-1].split(", ") if grouped else []
        count = max((len(LABELS.get(name, ("one", "two"))) for name in names), default=1)
        return [
            {name: (values := LABELS.get(name, ("one", "two")))[row % len(values)] for name in names}
            for row in range(count)
        ]

    @staticmethod
    def _value(query: str, row: int, time: float) -> float:
        if "state:score" in query or "finding_score" in query:
            return (0, 60, 240)[int(time / 60 + row) % 3]
        return 0.5 + 0.4 * math.sin(time / 40 + row)


@pytest.fixture
def source() -> Source:
    return Source(cast("Prometheus", Invented()), 1_764_208_800, 1_764_209_100, 10, "1m", {})


@pytest.mark.parametrize("uid", ["innoscope-fleet", "innoscope-replication"])
def test_a_picture_shows_the_visible_part_of_a_dashboard(uid: str, source: Source, tmp_path: Path) -> None:
    board = grafana.dashboards()[uid]
    picture(board, source, tmp_path / "all.png")
    picture(board, source, tmp_path / "top.png", rows=10)

    bottom = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in board["panels"])
    with Image.open(tmp_path / "all.png") as image:
        assert image.height == pytest.approx(bottom * 26 + 46, abs=2)
    with Image.open(tmp_path / "top.png") as image:
        assert image.height < bottom * 26


def test_states_have_the_labels_and_colors_of_their_ranges() -> None:
    [panel, *_] = grafana.panels(grafana.dashboards()["innoscope-fleet"])
    defaults = panel["fieldConfig"]["defaults"]

    for low, text, color in states.STATES:
        assert colors.of_value(low, defaults) == (text, colors.NAMED[color])
    assert colors.of_value(79.9, defaults)[0] == "finding"
    assert colors.of_value(0.5, defaults)[0] == "normal"


def test_legends_show_the_highest_series_first() -> None:
    [panel] = [
        one
        for one in grafana.panels(grafana.dashboards()["innoscope-server"])
        if one["title"] == "Threads by what they wait for"
    ]
    rows = legends.entries(
        panel,
        [
            Series("on_cpu", {}, [1, 2, math.nan]),
            Series("row_lock", {}, [9, 30, 4]),
            Series("purge", {}, [math.nan] * 3),
        ],
    )

    assert [(row.name, row.values) for row in rows] == [
        ("row_lock", ("4", "30")), ("on_cpu", ("2", "2")), ("purge", ("–", "–")),
    ]  # fmt: skip
    assert rows[0].color == wait_colors.palette()["row_lock"]
