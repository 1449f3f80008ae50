"""``python -m incidents.table``: update docs/incidents.md from the stored results of the lab.

The rows of incidents that were not run are kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from generated_page import generated, with_generated
from incidents import lab_results as store
from incidents.all_incidents import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from incidents.lab_results import Line

PAGE = Path(__file__).parents[2] / "docs" / "incidents.md"
#: Maximum length of the evidence in a table row, in characters.
_EVIDENCE = 180
#: A row of one of the tables, whose first cell is the incident's name.
_ROW = re.compile(r"^\| ([\w-]+) \|.*$", re.M)


def main() -> int:
    """Write the page; return 1 if an incident has neither a result nor a row."""
    page, results = PAGE.read_text(), by_incident(store.results())
    rows, cures = kept_rows(page)
    rows |= {name: _row(name, runs) for name, runs in results.items()}
    cures |= {name: _cure_row(name, cure) for name, runs in results.items() if (cure := runs[-1]["cure"])}
    missing = [name for name in BY_NAME if name not in rows]
    if missing:
        print(f"no result of {', '.join(missing)}: python -m incidents.run", file=sys.stderr)
        return 1
    PAGE.write_text(with_generated(page, "\n".join(tables(rows, cures))))
    return 0


def kept_rows(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the rows of the page's two tables, by incident."""
    incidents, _, cures = generated(page).partition("| incident | cure |")
    return _by_name(incidents), _by_name(cures)


def _by_name(table: str) -> dict[str, str]:
    return {row[1]: row[0] for row in _ROW.finditer(table) if row[1] in BY_NAME}


def by_incident(lines: Iterable[Line]) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["incident"], []).append(line)
    return found


def tables(rows: Mapping[str, str], cures: Mapping[str, str]) -> Iterator[str]:
    """Yield the table of the incidents, their descriptions, and the table of the cures."""
    servers = {incident.server for incident in BY_NAME.values()}
    yield f"{len(BY_NAME)} incidents on {len(servers)} servers."
    yield ""
    yield "| incident | server | first finding | seconds | evidence | runs that agree | then also |"
    yield "|---|---|---|---|---|---|---|"
    for name in BY_NAME:
        yield rows[name]
    yield ""
    yield "The cause of each incident:"
    yield ""
    for name, incident in BY_NAME.items():
        yield f"- **{name}**: {incident.what}"
    yield ""
    yield "| incident | cure | counter | before, per second | after, per second | factor |"
    yield "|---|---|---|---|---|---|"
    for name in BY_NAME:
        if name in cures:
            yield cures[name]


def _row(name: str, runs: Sequence[Line]) -> str:
    last = runs[-1]
    agree = sum(line["first"] == last["first"] for line in runs)
    cells = (
        name,
        last["server"],
        f"`{last['first']}` {last['score']:.0f}",
        f"{last['seconds']:.1f}",
        _shortened("; ".join([last["title"], *last["evidence"], *last["blockers"][:1]])),
        f"{agree} of {len(runs)}",
        ", ".join(f"`{one}`" for one in last["findings"][1:]) or "–",
    )
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _shortened(text: str) -> str:
    return text if len(text) <= _EVIDENCE else text[: _EVIDENCE - 1].rstrip() + "…"


def _cure_row(name: str, cure: Mapping[str, Any]) -> str:
    factor = cure["after"] / cure["before"] if cure["before"] else float("inf")
    rates = f"{cure['before']:,.0f} | {cure['after']:,.0f} | {factor:.1f}"
    return f"| {name} | `{cure['command']}` | {cure['counter']} | {rates} |"


if __name__ == "__main__":
    sys.exit(main())
