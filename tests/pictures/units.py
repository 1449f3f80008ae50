"""Format numbers and their units approximately as Grafana does."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"), (60.0, "min"), (3600.0, "h"))
_SHORT = ((1.0, ""), (1e3, "K"), (1e6, "M"), (1e9, "G"))
_BYTES = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"))
_RATES = {"Bps": ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")), "ops": tuple(
    (size, f"{name} ops/s".strip()) for size, name in _SHORT)}  # fmt: skip


def written(value: float, unit: str) -> str:
    """Format a value with its unit."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    match unit:
        case "percentunit":
            return f"{_digits(value * 100)} %"
        case "dateTimeAsIso":
            return datetime.fromtimestamp(value / 1000, UTC).strftime("%H:%M:%S")
        case "s":
            return _scaled(value, _SECONDS)
        case "bytes":
            return _scaled(value, _BYTES)
        case "Bps" | "ops":
            return _scaled(value, _RATES[unit])
        case "none":
            return f"{value:g}"
    return _scaled(value, _SHORT)


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    if value == 0:
        return f"0 {next((name for size, name in steps if size == 1), '')}".strip()
    size, name = next((step for step in reversed(steps) if abs(value) >= step[0]), steps[0])
    return f"{_digits(value / size)} {name}".strip()


def _digits(value: float) -> str:
    """Format a value with three significant digits."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(places, 3)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
