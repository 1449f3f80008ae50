"""Format numbers with units for display."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.1g} %"


def _seconds(value: float) -> str:
    """Return the duration in s, ms or µs."""
    for size, unit in ((1, "s"), (1e-3, "ms")):
        if value >= size:
            shown = value / size
            return f"{shown:,.0f} {unit}" if shown >= 10 else f"{shown:.1f} {unit}"
    return f"{value * 1e6:.0f} µs"


def _bytes(value: float) -> str:
    size = float(value)
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


#: Formatting functions for the units in ``{signal:unit}``.
UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "count": _count,
    "percent": _percent,
    "seconds": _seconds,
    "bytes": _bytes,
}
