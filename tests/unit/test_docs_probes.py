"""The results in docs/probes.md cover all servers, and no probe misses too many events."""

from __future__ import annotations

import re
from pathlib import Path

from live.probe_selftest import EVENTS, FLOOR
from servers import ADDED, NAMES

_PAGE = Path(__file__).parents[2] / "docs" / "probes.md"


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_probe_table_has_every_server() -> None:
    head = next(line for line in _PAGE.read_text().splitlines() if line.startswith("| family |"))
    assert _cells(head)[2:] == [*NAMES, *ADDED]


def test_no_probe_under_counts() -> None:
    lines = _PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| event |"))
    rows = {_cells(line)[0]: _cells(line)[3:] for line in lines[start + 2 :] if line.startswith("| ")}
    assert _cells(lines[start])[3:] == [*NAMES, *ADDED]
    for event in EVENTS:
        for cell in rows[event.name]:
            share = re.match(r"([\d.]+)% of [\d,]+$", cell)
            assert cell == "no probe" or (share and float(share[1]) >= 100 * FLOOR), f"{event.name}: {cell}"
