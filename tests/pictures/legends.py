"""Draw the legend of a graph: a table with the last and the highest value of each series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pictures import colors
from pictures.units import written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pictures.data import Series

Json = dict[str, Any]
Size = tuple[int, int]

ROW_PX = 13
#: Rows of a legend below a graph.
_LOW_ROWS = 3
_LETTER_PX = 5.6
_VALUE_PX = 58


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a legend. ``values`` are the formatted last and highest value; none in a legend of states."""

    name: str
    color: str
    values: tuple[str, ...] = ()


def entries(panel: Json, series: list[Series]) -> list[Entry]:
    """Return the rows of a graph's legend, the series with the highest maximum first."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    rows = []
    for index, one in enumerate(series):
        most = max((value for value in one.values if math.isfinite(value)), default=math.nan)
        entry = Entry(
            one.name, colors.of_series(panel, one.name, index), (written(one.last, unit), written(most, unit))
        )
        rows.append((-math.inf if math.isnan(most) else most, entry))
    return [entry for _, entry in sorted(rows, key=lambda row: -row[0])]


def low_px(rows: list[Entry]) -> int:
    """Return the height of a legend below the graph, including its heading."""
    return ROW_PX * (min(len(rows), _LOW_ROWS) + 1) if rows else 0


def draw(figure: Figure, rows: list[Entry], corner: tuple[float, float], wide: float, size: Size) -> None:
    """Draw the rows as a table, which is ``wide`` pixels wide. ``corner`` is its upper left end."""
    x, y = corner
    right = x + (wide - _VALUE_PX) / size[0], x + wide / size[0]
    for at, title in zip(right, ("Last", "Max"), strict=True):
        figure.text(at, y, title, color=colors.NAMED["blue"], fontsize=6.5, va="center", ha="right")
    letters = int((wide - 2 * _VALUE_PX - 20) / _LETTER_PX)
    for row in rows:
        y -= ROW_PX / size[1]
        figure.text(x, y, "▬", color=row.color, fontsize=7, va="center")
        name = row.name if len(row.name) <= letters else row.name[: letters - 1] + "…"
        figure.text(x + 12 / size[0], y, name, color=colors.FOREGROUND, fontsize=6.5, va="center")
        for at, text in zip(right, row.values, strict=False):
            figure.text(at, y, text, color=colors.FOREGROUND, fontsize=6.5, va="center", ha="right")


def draw_states(figure: Figure, rows: list[Entry], corner: tuple[float, float], size: Size) -> None:
    """Draw the states and their colors in one line, to the right of ``corner``."""
    x, y = corner
    for row in rows:
        figure.text(x, y, "■", color=row.color, fontsize=8, va="center")
        figure.text(x + 12 / size[0], y, row.name, color=colors.FOREGROUND, fontsize=7, va="center")
        x += (26 + 6 * len(row.name)) / size[0]
