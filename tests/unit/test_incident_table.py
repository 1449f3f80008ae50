"""docs/incidents.md contains each incident of the lab with its expected first finding."""

from __future__ import annotations

import re

from incidents import table
from incidents.all_incidents import BY_NAME, INCIDENTS

_ROW = re.compile(r"^\| ([\w-]+) \| ([\w.-]+) \| `(\w+)` \d+ \|", re.M)


def test_each_incident_is_in_the_table() -> None:
    rows = {name: (server, found) for name, server, found in _ROW.findall(table.PAGE.read_text())}
    assert rows == {name: (one.server, one.finding) for name, one in BY_NAME.items()}, (
        "run: PYTHONPATH=tests python -m incidents.run && PYTHONPATH=tests python -m incidents.table"
    )


def test_each_incident_has_a_description() -> None:
    assert [incident.name for incident in INCIDENTS if not incident.what] == []
