"""``python -m incidents.table``: update docs/incidents.md from the results of the lab's last run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from incidents import lab_results as store
from incidents.all_incidents import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from incidents.lab_results import Line

PAGE = Path(__file__).parents[2] / "docs" / "incidents.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
#: Characters of evidence in a row of the table.
_EVIDENCE = 180


def main() -> int:
    """Write the page; return 1 if an incident of the lab has no result."""
    results = by_incident(store.results())
    missing = [name for name in BY_NAME if name not in results]
    if missing:
        print(f"no result of {', '.join(missing)}: python -m incidents.run", file=sys.stderr)
        return 1
    PAGE.write_text(with_tables(PAGE.read_text(), "\n".join(tables(results))))
    return 0


def by_incident(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Group the runs by incident."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["incident"], []).append(line)
    return found


def with_tables(page: str, made: str) -> str:
    """Replace the text between the page's markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def tables(results: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Yield the table of the incidents, their descriptions, and the table of the cures."""
    servers = {line["server"] for runs in results.values() for line in runs}
    most = max(len(runs) for runs in results.values())
    yield f"{len(BY_NAME)} incidents on {len(servers)} servers, each run {_times(most)}."
    yield ""
    yield "| incident | server | first finding | seconds | evidence | runs that agree | then also |"
    yield "|---|---|---|---|---|---|---|"
    for name in BY_NAME:
        yield _row(name, results[name])
    yield ""
    yield "The cause of each incident:"
    yield ""
    for name, incident in BY_NAME.items():
        yield f"- **{name}**: {incident.what}"
    cured = [runs[-1] for name in BY_NAME if (runs := results[name])[-1]["cure"]]
    if cured:
        yield from _cures(cured)


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


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


def _cures(lines: Iterable[Line]) -> Iterator[str]:
    yield ""
    yield "| incident | cure | counted | before, a second | after | factor |"
    yield "|---|---|---|---|---|---|"
    for line in lines:
        cure = line["cure"]
        factor = cure["after"] / cure["before"] if cure["before"] else float("inf")
        rates = f"{cure['before']:,.0f} | {cure['after']:,.0f} | {factor:.1f}"
        yield f"| {line['incident']} | `{cure['command']}` | {cure['counter']} | {rates} |"


if __name__ == "__main__":
    sys.exit(main())
