"""``python -m incidents.healthy_table``: write docs/healthy-loads.md from the results of the loads.

The rows of loads that were not run on all servers are kept.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from generated_page import generated, with_generated
from incidents.counted import Counted
from incidents.healthy import false_alarms, results
from incidents.healthy_loads import LOADS, SERVERS, TRUTHS

if TYPE_CHECKING:
    from incidents.healthy import Line
    from incidents.healthy_loads import Healthy

PAGE: Final = Path(__file__).parents[2] / "docs" / "healthy-loads.md"
_ROW = re.compile(r"^\| ([\w-]+) \|.*$", re.M)


def main() -> int:
    """Write the page; return 1 if a load has neither results nor a row."""
    page = PAGE.read_text()
    rows = kept_rows(page)
    lines = {(line["load"], line["server"]): line for line in results()}
    for load in LOADS:
        if all((load.name, server) in lines for server in SERVERS):
            rows[load.name] = row(load, [lines[load.name, server] for server in SERVERS])
    missing = [load.name for load in LOADS if load.name not in rows]
    if missing:
        print(f"no result of {', '.join(missing)}: python -m incidents.healthy", file=sys.stderr)
        return 1
    made = "\n".join([*_truths(), "", *_loads(rows)])
    PAGE.write_text(with_generated(page, made))
    return 0


def kept_rows(page: str) -> dict[str, str]:
    """Return the rows of the page's table, by load."""
    return {found[1]: found[0] for found in _ROW.finditer(generated(page))}


def _truths() -> list[str]:
    rows = (f"| `{name}` | {truth.means} |" for name, truth in TRUTHS.items())
    return ["| finding | correct if |", "|---|---|", *rows]


def _loads(rows: dict[str, str]) -> list[str]:
    header = f"| load | what runs | {' | '.join(SERVERS)} | why this is right |"
    return [header, "|---" * 6 + "|", *(rows[load.name] for load in LOADS)]


def row(load: Healthy, lines: list[Line]) -> str:
    """Return the row of one load, with the results on each server."""
    cells = [load.name, load.what, *map(_verdict, lines), load.why]
    return f"| {' | '.join(cells)} |"


def _verdict(line: Line) -> str:
    counted, alarms = Counted(**line["counted"]), false_alarms(line)
    found = []
    for name in line["findings"]:
        counts = f": {TRUTHS[name].counts(counted)}" if name in TRUTHS else ""
        found.append(f"`{name}`{counts}{' (**not proven**)' if name in alarms else ''}")
    return "; ".join(found) or ("nothing wrong" if line["nothing_wrong"] else "no answer (**not proven**)")


if __name__ == "__main__":
    sys.exit(main())
