"""Choose the colors and labels of values and series as Grafana does."""

from __future__ import annotations

from typing import Any

from pictures.units import written

Json = dict[str, Any]

FOREGROUND = "#ccccdc"
FAINT = "#8e8e99"
#: Colors that Grafana defines by name, and Grafana's classic palette.
NAMED = {
    "green": "#73bf69", "yellow": "#fade2a", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2",
    "purple": "#b877d9", "dark-orange": "#fa6400", "dark-red": "#c4162a", "dark-purple": "#8f3bb8",
    "text": FOREGROUND,
}  # fmt: skip
_PALETTE = (
    "#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0",
    "#508642", "#cca300", "#447ebc", "#c15c17", "#890f02", "#0a437c", "#6d1f62", "#584477",
)  # fmt: skip


def of_series(panel: Json, name: str, index: int) -> str:
    """Return the color that the panel sets for a series, or else the palette's color at ``index``."""
    fixed = override(panel, name).get("color", {}).get("fixedColor")
    return NAMED.get(fixed, fixed) if fixed else _PALETTE[index % len(_PALETTE)]


def override(panel: Json, title: str) -> Json:
    """Return the properties that the panel sets for a series or column."""
    for one in panel["fieldConfig"]["overrides"]:
        if one["matcher"]["options"] == title:
            return {each["id"]: each["value"] for each in one["properties"]}
    return {}


def of_value(value: float, defaults: Json) -> tuple[str, str]:
    """Return the label and the color of a value: by its range, or else by the thresholds."""
    found = state(value, defaults.get("mappings", []))
    if found:
        return found
    return written(value, defaults["unit"]), threshold(value, defaults["thresholds"]["steps"])


def state(value: float, mappings: list[Json]) -> tuple[str, str] | None:
    """Return the label and the color of the first range that contains the value."""
    for mapping in mappings:
        if mapping["options"]["from"] <= value <= mapping["options"]["to"]:
            result = mapping["options"]["result"]
            return result["text"], NAMED[result["color"]]
    return None


def threshold(value: float, steps: list[Json]) -> str:
    """Return the color of the highest threshold that the value reaches."""
    reached = [step for step in steps if step["value"] is None or value >= step["value"]]
    return NAMED[reached[-1]["color"]]
