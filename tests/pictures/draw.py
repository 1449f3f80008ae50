"""Draw a dashboard as one picture, laid out by its grid, in Grafana's dark colors."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from pictures.colors import FOREGROUND
from pictures.kinds import draw

if TYPE_CHECKING:
    from pathlib import Path

    from pictures.data import Source

Json = dict[str, Any]

_DPI = 100
_COLUMN_PX = 56
_ROW_PX = 26
_HEAD_PX = 46
_GAP_PX = 4
_COLUMNS = 24
_PAGE, _PANEL = "#111217", "#181b1f"
#: Number of colors in the file's palette; a small palette keeps the files small.
_COLORS = 256


def picture(board: Json, source: Source, path: Path, rows: int | None = None) -> None:
    """Write the dashboard as it opens, or its first ``rows`` units of height, as a PNG file."""
    panels = [panel for panel in board["panels"] if rows is None or panel["gridPos"]["y"] < rows]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * _ROW_PX + _HEAD_PX
    width = _COLUMNS * _COLUMN_PX
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=_PAGE)
    with mpl.rc_context({"font.size": 7, "font.family": "DejaVu Sans"}):
        _head(figure, board, source, height)
        for panel in panels:
            _place(figure, panel, source, width, height)
        stream = io.BytesIO()
        figure.savefig(stream, format="png")
    _flattened(Image.open(stream).convert("RGB")).save(path, optimize=True)


def _flattened(image: Image.Image) -> Image.Image:
    """Reduce the image to its most frequent colors."""
    counted = image.getcolors(image.width * image.height) or []
    frequent = [color for _, color in sorted(counted, reverse=True)[:_COLORS]]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for color in frequent if isinstance(color, tuple) for part in color])
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def _head(figure: Figure, board: Json, source: Source, height: int) -> None:
    span = "–".join(
        datetime.fromtimestamp(time, UTC).strftime("%H:%M:%S") for time in (source.start, source.end)
    )
    chosen = ", ".join(f"{name} {value}" for name, value in source.chosen.items()) or "all servers"
    top = 1 - 18 / height
    figure.text(0.006, top, board["title"], color=FOREGROUND, fontsize=13, va="center", weight="bold")
    words = f"{chosen} · {span} UTC · plotted from the panels' queries in Prometheus, not by Grafana"
    figure.text(0.994, top, words, color="#8e8e99", fontsize=8, va="center", ha="right")


def _place(figure: Figure, panel: Json, source: Source, width: int, height: int) -> None:
    place = panel["gridPos"]
    left = (place["x"] * _COLUMN_PX + _GAP_PX) / width
    bottom = 1 - (_HEAD_PX + (place["y"] + place["h"]) * _ROW_PX - _GAP_PX) / height
    wide = (place["w"] * _COLUMN_PX - 2 * _GAP_PX) / width
    high = (place["h"] * _ROW_PX - 2 * _GAP_PX) / height
    if panel["type"] == "row":
        mark = "▸" if panel["collapsed"] else "▾"
        figure.text(
            left, bottom + high / 2, f"{mark} {panel['title']}", color=FOREGROUND, fontsize=9, va="center"
        )
        return
    box = Rectangle((left, bottom), wide, high, facecolor=_PANEL, edgecolor="#25272c", lw=0.6, zorder=-1)
    figure.add_artist(box)
    figure.text(left + 6 / width, bottom + high - 11 / height, panel["title"], color=FOREGROUND,
                fontsize=8, va="center", weight="bold")  # fmt: skip
    draw(figure, panel, source, (left, bottom, wide, high), (width, height))
