"""Store the lab's results in ``build/incidents.json``, one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from incidents.lab import Incident, Outcome

FILE = Path(__file__).parents[2] / "build" / "incidents.json"

Line = dict[str, Any]


def keep(incident: Incident, outcome: Outcome) -> Line:
    """Append a result and return it. Its key ``run`` numbers the runs of the incident, starting at 1."""
    stall, record = outcome.stall, outcome.stall.record
    first = record["findings"][0] if record["findings"] else {}
    line = {
        "run": 1 + sum(one["incident"] == incident.name for one in results()),
        "incident": incident.name,
        "server": incident.server,
        "version": record["server"]["version"],
        "expected": incident.finding,
        "first": first.get("name"),
        "title": first.get("title"),
        "score": first.get("score"),
        "findings": stall.names,
        "seconds": round(stall.seconds, 2),
        "evidence": first.get("evidence", []),
        "blockers": [blocker["words"] for blocker in first.get("blockers", ())],
        "twin": outcome.twin.names,
        "cure": asdict(outcome.effect) if outcome.effect else None,
    }
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return line


def results() -> list[Line]:
    """Return all results, oldest first."""
    if not FILE.exists():
        return []
    return [json.loads(line) for line in FILE.read_text().splitlines()]


def forget() -> None:
    """Delete all results."""
    FILE.unlink(missing_ok=True)


def disagreeing() -> dict[str, list[str | None]]:
    """Return, for each incident whose runs disagree, the first finding of each run."""
    firsts: dict[str, list[str | None]] = {}
    for line in results():
        firsts.setdefault(line["incident"], []).append(line["first"])
    return {name: found for name, found in firsts.items() if len(set(found)) > 1}
