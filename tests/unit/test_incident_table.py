"""docs/incidents.md has every incident of the lab, with the first finding that was expected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from incidents import table
from incidents.all_incidents import BY_NAME, INCIDENTS

_ROW = re.compile(r"^\| ([\w-]+) \| ([\w.-]+) \| `(\w+)` \d+ \|", re.M)

_LINE = {
    "incident": "", "server": "mysql-9.7", "first": "row_lock_convoy", "title": "20 threads wait",
    "score": 88.4, "findings": ["row_lock_convoy", "spinning"], "seconds": 7.25, "evidence": ["a | b"],
    "blockers": ["connection 42"], "cure": None,
}  # fmt: skip


def test_every_incident_is_in_the_table() -> None:
    rows = {name: (server, found) for name, server, found in _ROW.findall(table.PAGE.read_text())}
    assert rows == {name: (one.server, one.finding) for name, one in BY_NAME.items()}, (
        "run: PYTHONPATH=tests python -m incidents.run && PYTHONPATH=tests python -m incidents.table"
    )


def test_every_incident_says_what_was_done() -> None:
    assert [incident.name for incident in INCIDENTS if not incident.what] == []


def test_the_table_says_whether_the_runs_agree() -> None:
    results = {name: [{**_LINE, "incident": name}] * 3 for name in BY_NAME}
    name = next(iter(BY_NAME))
    results[name] = [{**_LINE, "incident": name, "first": "spinning"}, *results[name][1:]]
    rows = [line for line in table.tables(results) if line.startswith(f"| {name} |")]
    assert rows == [
        f"| {name} | mysql-9.7 | `row_lock_convoy` 88 | 7.2 | 20 threads wait; a ∣ b; connection 42 "
        "| 2 of 3 | `spinning` |"
    ]


def test_a_cure_has_a_row_of_its_own() -> None:
    cure = {"command": "innoscope toggle set x", "counter": "Questions", "before": 10.0, "after": 40.0}
    name = next(iter(BY_NAME))
    results = {one: [{**_LINE, "incident": one}] for one in BY_NAME} | {
        name: [{**_LINE, "incident": name, "cure": cure}]
    }
    assert f"| {name} | `innoscope toggle set x` | Questions | 10 | 40 | 4.0 |" in table.tables(results)


def test_only_what_is_between_the_markers_is_replaced() -> None:
    page = f"above\n{table.BEGIN}\nold\n{table.END}\nbelow\n"
    assert table.with_tables(page, "new") == f"above\n{table.BEGIN}\nnew\n{table.END}\nbelow\n"


def test_a_person_is_told_which_incidents_there_are() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "incidents"],
        env={**os.environ, "PYTHONPATH": str(Path(table.__file__).parents[1])},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    listed = [line.split()[:3] for line in done.stdout.splitlines() if line and "make incident" not in line]
    assert listed == [[one.name, one.server, one.finding] for one in INCIDENTS]
