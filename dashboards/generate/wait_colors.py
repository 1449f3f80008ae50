"""Read the colors of wait classes from the agent's live page, so that the dashboards show the same ones."""

from __future__ import annotations

import colorsys
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

#: A line of the page's palette: the class, and its hue, saturation and lightness.
_ENTRY = re.compile(r"^  (\w+): \[(\d+), (\d+), (\d+)\],$", re.MULTILINE)
#: Classes of threads that wait for work or are in SLEEP(). Most panels do not show them.
IDLE = frozenset({"idle", "background_idle", "user_sleep"})


@cache
def palette() -> dict[str, str]:
    """Return the color of each wait class as ``#rrggbb``."""
    text = (files("innoscope") / "daemon/http/page/colors.js").read_text()
    return {name: _rgb(int(hue), int(part), int(light)) for name, hue, part, light in _ENTRY.findall(text)}


def _rgb(hue: int, saturation: int, lightness: int) -> str:
    parts = colorsys.hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    return "#" + "".join(f"{round(part * 255):02x}" for part in parts)


def of(classes: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return (wait class, color) pairs of the given classes, for ``Panel.colors``."""
    return tuple((name, palette()[name]) for name in sorted(classes))


def busy() -> tuple[tuple[str, str], ...]:
    """Return (wait class, color) pairs of all classes that are not idle."""
    return of(palette().keys() - IDLE)
