"""Draw a state timeline: one bar per series, whose segments have the colors of the states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pictures import colors
from pictures.legends import Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pictures.data import Series, Source

Json = dict[str, Any]


def draw(axes: Axes, panel: Json, series: list[Series], source: Source) -> list[Entry]:
    """Draw the bars, the first series on top, and return the states that occur, the worst one first."""
    defaults = panel["fieldConfig"]["defaults"]
    times = [time - source.start for time in source.times]
    seen: dict[str, tuple[float, str]] = {}
    for row, one in enumerate(series):
        for time, value in zip(times, one.values, strict=True):
            if math.isnan(value):
                continue
            text, color = colors.of_value(value, defaults)
            seen[text] = (max(value, seen.get(text, (value, ""))[0]), color)
            axes.barh(row, source.step, 0.8, left=time, color=color, alpha=0.8, linewidth=0)
    axes.set_ylim(len(series) - 0.4, -0.6)
    axes.set_yticks(range(len(series)), [one.name for one in series], fontsize=6.5)
    axes.grid(visible=False)
    worst = sorted(seen.items(), key=lambda item: -item[1][0])
    return [Entry(text, color) for text, (_, color) in worst]
