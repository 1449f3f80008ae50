"""Draw panels of each type into their boxes in the figure."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from matplotlib.colors import PowerNorm

from pictures.units import written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pictures.data import Series, Source

Json = dict[str, Any]
Box = tuple[float, float, float, float]
Size = tuple[int, int]
#: The rows of a legend: names with their colors.
Rows = list[list[tuple[str, str]]]

FOREGROUND = "#ccccdc"
_FAINT = "#8e8e99"
_GRID = "#2c2f36"
#: Colors that Grafana defines by name, and Grafana's classic palette.
_NAMED = {"green": "#73bf69", "yellow": "#fade2a", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
_PALETTE = (
    "#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0",
    "#508642", "#cca300", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477",
)  # fmt: skip
_LEGEND_ROW_PX = 13
_TICKS = 4
_NARROW_PX = 260


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
    heatmap = panel["type"] == "heatmap"
    legend = [] if heatmap else _legend_rows(panel, series, box[2] * size[0])
    left, bottom, wide, high = box
    under = 20 + _LEGEND_ROW_PX * len(legend)
    axes = figure.add_axes(
        (left + 58 / size[0], bottom + under / size[1], wide - 70 / size[0], high - (under + 24) / size[1])
    )
    _dressed(axes, source, _TICKS if wide * size[0] > _NARROW_PX else 2)
    if not any(math.isfinite(value) for one in series for value in one.values):
        axes.text(0.5, 0.5, "No data", color=_FAINT, ha="center", va="center", transform=axes.transAxes)
        axes.set_yticks([])
    elif heatmap:
        _heatmap(axes, series, source)
    else:
        _lines(axes, panel, series, source)
        _legend(figure, legend, (left + 10 / size[0], bottom + (under - 26) / size[1]), size)


def _dressed(axes: Axes, source: Source, count: int) -> None:
    """Draw the grid, and label the time axis at ``count`` positions."""
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_FAINT, length=0, labelsize=7)
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
        color = _color(panel, one.name, index)
        if one.name in dashed:
            axes.plot(times, one.values, color=_NAMED["red"], linewidth=1.2, linestyle=(0, (4, 3)))
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


def _color(panel: Json, name: str, index: int) -> str:
    """Return the color that the panel sets for a series, or else the palette's color at ``index``."""
    fixed = _override(panel, name).get("color", {}).get("fixedColor")
    return _NAMED[fixed] if fixed else _PALETTE[index % len(_PALETTE)]


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
        axes.axhspan(start, end, color=_NAMED[step["color"]], alpha=0.13, linewidth=0)


def _legend_rows(panel: Json, series: list[Series], room_px: float) -> Rows:
    """Arrange the series' names and colors in at most three lines of a legend."""
    rows: Rows = [[]]
    used = 0.0
    for index, one in enumerate(series):
        wanted = 20 + 5.9 * len(one.name)
        if used + wanted > room_px - 20 and rows[-1]:
            rows.append([])
            used = 0.0
        rows[-1].append((one.name, _color(panel, one.name, index)))
        used += wanted
    return rows[:3]


def _legend(
    figure: Figure, rows: list[list[tuple[str, str]]], corner: tuple[float, float], size: Size
) -> None:
    for line, row in enumerate(rows):
        x = corner[0]
        y = corner[1] - line * _LEGEND_ROW_PX / size[1]
        for name, color in row:
            figure.text(x, y, "▬", color=color, fontsize=7, va="center")
            figure.text(x + 12 / size[0], y, name, color=FOREGROUND, fontsize=7, va="center")
            x += (20 + 5.9 * len(name)) / size[0]


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
        text, color = _valued(one.last, defaults)
        x = left + wide * (index + 0.5) / len(series)
        figure.text(
            x, bottom + high * 0.42, text, color=color, fontsize=15, ha="center", va="center", weight="bold"
        )
        if len(series) > 1:
            figure.text(
                x, bottom + 10 / size[1], one.name, color=_FAINT, fontsize=7, ha="center", va="center"
            )


def _valued(value: float, defaults: Json) -> tuple[str, str]:
    """Return the label and the color of a value: those of a matching mapping, or else by the thresholds."""
    for mapping in defaults["mappings"]:
        found = mapping["options"].get(f"{value:g}")
        if found:
            return found["text"], _NAMED[found["color"]]
    return written(value, defaults["unit"]), _threshold(value, defaults["thresholds"]["steps"])


def _threshold(value: float, steps: list[Json]) -> str:
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return _NAMED[reached[-1]["color"]]


def _table(figure: Figure, panel: Json, source: Source, box: Box, size: Size) -> None:
    left, bottom, wide, high = box
    organized = panel["transformations"][1]["options"]
    fields = sorted(organized["indexByName"], key=organized["indexByName"].__getitem__)
    rows = source.rows(panel)
    for sort in panel["options"]["sortBy"]:
        by = next(field for field, title in organized["renameByName"].items() if title == sort["displayName"])
        rows.sort(key=lambda row: -float(row.get(by, -math.inf)))
    widths = _widths(fields, rows, organized["renameByName"])
    x = left + 8 / size[0]
    for field, share in zip(fields, widths, strict=True):
        title = organized["renameByName"][field]
        special = _override(panel, title)
        y = bottom + high - 30 / size[1]
        figure.text(x, y, title, color=_NAMED["blue"], fontsize=7.5, va="center")
        for row in rows:
            y -= 18 / size[1]
            text, color = _cell(row.get(field), special, panel["fieldConfig"]["defaults"]["unit"])
            figure.text(x, y, text, color=color, fontsize=7.5, va="center")
        x += wide * share


def _widths(fields: list[str], rows: list[dict[str, Any]], titles: dict[str, str]) -> list[float]:
    """Return the columns' shares of the table's width, in proportion to each column's longest text."""
    longest = [
        max([8, len(titles[field]), *(len(row[field]) for row in rows if isinstance(row.get(field), str))])
        for field in fields
    ]
    return [width / sum(longest) * 0.98 for width in longest]


def _override(panel: Json, title: str) -> Json:
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] == title:
            return {one["id"]: one["value"] for one in override["properties"]}
    return {}


def _cell(value: str | float | None, special: Json, unit: str) -> tuple[str, str]:
    if value is None:
        return "", FOREGROUND
    if isinstance(value, str):
        return value, _NAMED["blue"] if "links" in special else FOREGROUND
    color = _threshold(value, special["thresholds"]["steps"]) if "thresholds" in special else FOREGROUND
    return written(value, special.get("unit", unit)), color
