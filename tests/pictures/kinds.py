"""Draw a panel of any type in its box of the figure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from matplotlib.colors import PowerNorm

from pictures import colors, legends, timelines
from pictures.colors import FAINT, FOREGROUND, NAMED
from pictures.units import written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pictures.data import Series, Source

Json = dict[str, Any]
Box = tuple[float, float, float, float]
Size = tuple[int, int]

_GRID = "#2c2f36"
_TICKS = 4
_NARROW_PX = 260
#: Share of a panel's width that a legend on the right of a graph uses.
_SIDE = 0.38
#: Width of the names of a state timeline's rows.
_NAMES_PX = 200


def draw(figure: Figure, panel: Json, source: Source, box: Box, size: Size) -> None:
    """Draw a panel. ``box`` is left, bottom, width, height as shares of the figure; ``size`` is in pixels."""
    if panel["type"] == "stat":
        _stat(figure, panel, source, box, size)
    elif panel["type"] == "table":
        _table(figure, panel, source, box, size)
    else:
        _graph(figure, panel, source, box, size)


def _graph(figure: Figure, panel: Json, source: Source, box: Box, size: Size) -> None:
    series = source.series(panel)
    kind = panel["type"]
    legend = legends.entries(panel, series) if kind == "timeseries" else []
    side = kind == "timeseries" and panel["options"]["legend"]["placement"] == "right"
    left, bottom, wide, high = box
    under = 20 + (0 if side else legends.low_px(legend)) + (legends.ROW_PX if kind == "state-timeline" else 0)
    names = _NAMES_PX if kind == "state-timeline" else 58
    room = wide * size[0] * (1 - (_SIDE if side else 0)) - names - 12
    axes = figure.add_axes(
        (left + names / size[0], bottom + under / size[1], room / size[0], high - (under + 24) / size[1])
    )
    _dressed(axes, source, _TICKS if wide * size[0] > _NARROW_PX else 2)
    if not any(math.isfinite(value) for one in series for value in one.values):
        axes.text(0.5, 0.5, "No data", color=FAINT, ha="center", va="center", transform=axes.transAxes)
        axes.set_yticks([])
    elif kind == "heatmap":
        _heatmap(axes, series, source)
    elif kind == "state-timeline":
        states = timelines.draw(axes, panel, series, source)
        legends.draw_states(figure, states, (left + 10 / size[0], bottom + 10 / size[1]), size)
    else:
        _lines(axes, panel, series, source)
        _legend(figure, legend, box, size, under, side=side)


def _legend(
    figure: Figure, rows: list[legends.Entry], box: Box, size: Size, under: int, *, side: bool
) -> None:
    left, bottom, wide, high = box
    if side:
        fits = int((high * size[1] - 50) / legends.ROW_PX)
        corner = (left + wide * (1 - _SIDE) + 8 / size[0], bottom + high - 30 / size[1])
        legends.draw(figure, rows[:fits], corner, wide * size[0] * _SIDE - 20, size)
    else:
        fits = (under - 20) // legends.ROW_PX - 1
        corner = (left + 10 / size[0], bottom + (under - 26) / size[1])
        legends.draw(figure, rows[:fits], corner, wide * size[0] - 20, size)


def _dressed(axes: Axes, source: Source, count: int) -> None:
    """Draw the grid, and label the time axis at ``count`` positions."""
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=FAINT, length=0, labelsize=7)
    axes.set_xlim(0, source.end - source.start)
    ticks = [(source.end - source.start) * (index + 0.5) / count for index in range(count)]
    labels = [datetime.fromtimestamp(source.start + tick, UTC).strftime("%H:%M:%S") for tick in ticks]
    axes.set_xticks(ticks, labels)


def _lines(axes: Axes, panel: Json, series: list[Series], source: Source) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    times = [time - source.start for time in source.times]
    dashed = _dashed(panel)
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    missing = [all(math.isnan(one.values[at]) for one in series) for at in range(len(times))]
    floor = [math.nan if gap else 0.0 for gap in missing]
    for index, one in enumerate(series):
        color = colors.of_series(panel, one.name, index)
        if one.name in dashed:
            axes.plot(times, one.values, color=NAMED["red"], linewidth=1.2, linestyle=(0, (4, 3)))
        elif stacked:
            top = [
                low + (0 if math.isnan(value) else value)
                for low, value in zip(floor, one.values, strict=True)
            ]
            axes.fill_between(times, floor, top, color=color, alpha=0.6, linewidth=0)
            axes.plot(times, top, color=color, linewidth=0.9)
            floor = top
        else:
            axes.plot(times, one.values, color=color, linewidth=1.2)
    _scale(axes, defaults, [one for one in series if one.values])


def _dashed(panel: Json) -> set[str]:
    """Return the names of the series that show limits and are drawn as dashed lines."""
    return {
        one["matcher"]["options"]
        for one in panel["fieldConfig"]["overrides"]
        if any(each["id"] == "custom.lineStyle" for each in one["properties"])
    }


def _scale(axes: Axes, defaults: Json, series: list[Series]) -> None:
    unit = defaults["unit"]
    if "min" in defaults:
        axes.set_ylim(bottom=defaults["min"] - 0.01 * axes.get_ylim()[1])
    if "max" in defaults:
        axes.set_ylim(top=defaults["max"] * 1.02)
    elif not any(value > 0 for one in series for value in one.values):
        axes.set_ylim(top=1)
    low, high = axes.get_ylim()
    if defaults["custom"]["thresholdsStyle"]["mode"] == "area":
        _zones(axes, defaults["thresholds"]["steps"], low, high)
    axes.yaxis.set_major_locator(_locator())
    axes.yaxis.set_major_formatter(lambda value, _: written(value, unit))


def _locator() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5)


def _zones(axes: Axes, steps: list[Json], low: float, high: float) -> None:
    ends = [*(step["value"] for step in steps[1:]), high]
    for step, end in zip(steps, ends, strict=True):
        start = low if step["value"] is None else step["value"]
        axes.axhspan(start, end, color=NAMED[step["color"]], alpha=0.13, linewidth=0)


def _heatmap(axes: Axes, series: list[Series], source: Source) -> None:
    """Draw cumulative buckets (``le``), from the first non-empty bucket to the last one."""
    bounded = sorted((one for one in series), key=lambda one: float(one.labels["le"]))
    below = [0.0] * len(source.times)
    rows, bounds = [], []
    for one in bounded:
        filled = [0.0 if math.isnan(value) else value for value in one.values]
        rows.append([max(0.0, value - low) for value, low in zip(filled, below, strict=True)])
        bounds.append(float(one.labels["le"]))
        below = filled
    full = [index for index, row in enumerate(rows) if max(row) > 0]
    if not full:
        return
    first, last = full[0], min(full[-1] + 1, len(rows))
    shown = rows[first:last]
    edges = [time - source.start for time in source.times] + [source.end - source.start + source.step]
    axes.pcolormesh(edges, range(len(shown) + 1), shown, cmap="inferno", norm=PowerNorm(0.5))
    names = ["+Inf" if math.isinf(bound) else written(bound, "s") for bound in bounds[first:last]]
    axes.set_yticks([index + 1 for index in range(len(shown))], names)
    axes.grid(visible=False)


def _stat(figure: Figure, panel: Json, source: Source, box: Box, size: Size) -> None:
    left, bottom, wide, high = box
    defaults = panel["fieldConfig"]["defaults"]
    series = source.series(panel)
    for index, one in enumerate(series):
        text, color = colors.of_value(one.last, defaults)
        x = left + wide * (index + 0.5) / len(series)
        figure.text(
            x, bottom + high * 0.42, text, color=color, fontsize=15, ha="center", va="center", weight="bold"
        )
        if len(series) > 1:
            figure.text(x, bottom + 10 / size[1], one.name, color=FAINT, fontsize=7, ha="center", va="center")


def _table(figure: Figure, panel: Json, source: Source, box: Box, size: Size) -> None:
    left, bottom, wide, high = box
    organized = panel["transformations"][1]["options"]
    fields = sorted(organized["indexByName"], key=organized["indexByName"].__getitem__)
    rows = source.rows(panel)
    for sort in reversed(panel["options"]["sortBy"]):
        by = next(field for field, title in organized["renameByName"].items() if title == sort["displayName"])
        rows.sort(key=lambda row: -float(row.get(by, -math.inf)))
    unit = panel["fieldConfig"]["defaults"]["unit"]
    specials = {field: colors.override(panel, organized["renameByName"][field]) for field in fields}
    cells = [{field: _cell(row.get(field), specials[field], unit) for field in fields} for row in rows]
    widths = _widths(fields, cells, organized["renameByName"])
    x = left + 8 / size[0]
    for field, share in zip(fields, widths, strict=True):
        title = organized["renameByName"][field]
        y = bottom + high - 30 / size[1]
        figure.text(x, y, title, color=NAMED["blue"], fontsize=7.5, va="center")
        for row in cells:
            y -= 18 / size[1]
            text, color = row[field]
            figure.text(x, y, text, color=color, fontsize=7.5, va="center")
        x += wide * share


def _widths(fields: list[str], rows: list[dict[str, tuple[str, str]]], titles: dict[str, str]) -> list[float]:
    """Return the columns' shares of the table's width, in proportion to each column's longest text."""
    longest = [max([8, len(titles[field]), *(len(row[field][0]) for row in rows)]) for field in fields]
    return [width / sum(longest) * 0.98 for width in longest]


def _cell(value: str | float | None, special: Json, unit: str) -> tuple[str, str]:
    if value is None:
        return "", FOREGROUND
    if isinstance(value, float) and (found := colors.state(value, special.get("mappings", []))):
        return found
    if isinstance(value, str):
        return value, NAMED["blue"] if "links" in special else FOREGROUND
    color = colors.threshold(value, special["thresholds"]["steps"]) if "thresholds" in special else FOREGROUND
    return written(value, special.get("unit", unit)), color
