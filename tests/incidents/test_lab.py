"""`diagnose` reports the cause of each stall first, and does not report it for the healthy twin."""

from __future__ import annotations

import pytest

from incidents import store
from incidents.every import INCIDENTS
from incidents.judged import wrong
from incidents.lab import Incident, run
from scale import long

#: The incident that the quick suite has.
QUICK = "row-lock-97"
CHOSEN = [
    pytest.param(one, id=one.name, marks=() if one.name == QUICK else long("one incident in make test"))
    for one in INCIDENTS
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("incident", CHOSEN)
def test_the_cause_comes_first(incident: Incident) -> None:
    outcome = run(incident)
    line = store.keep(incident, outcome)
    print(f"\n{incident.name}: {line['findings']}; twin: {line['twin']}; {line['evidence']}")
    assert not wrong(incident, outcome)
