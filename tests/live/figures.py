"""What the live tests measured: printed at the end of the session and kept in ``build/live.json``."""

from __future__ import annotations

import json
from pathlib import Path

FILE = Path(__file__).parents[2] / "build" / "live.json"

#: Lines to print, by heading, in the order they were measured.
lines: dict[str, list[str]] = {}
_values: dict[str, dict[str, object]] = {}


def record(heading: str, subject: str, text: str, **values: object) -> None:
    """``subject`` is what was measured, ``text`` the figure for people, ``values`` the same for programs."""
    lines.setdefault(heading, []).append(f"{heading} {subject}: {text}")
    _values.setdefault(heading, {})[subject] = values


def share(part: int, whole: int) -> str:
    """``12030/12030 = 100.00 %``."""
    return f"{part}/{whole} = {100 * part / whole:.2f} %" if whole else "none"


def save() -> None:
    """Write all figures of this session."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(_values, indent=1, ensure_ascii=False) + "\n")
