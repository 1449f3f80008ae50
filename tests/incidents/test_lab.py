"""`diagnose` reports the cause of each stall first, and does not report it for the healthy twin."""

from __future__ import annotations

import pytest

from incidents import store
from incidents.every import INCIDENTS
from incidents.judged import wrong
from incidents.lab import Incident, run
from scale import long


@long("tests/live/test_diagnose_less.py and test_incident_live.py diagnose stalls")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_the_cause_comes_first(incident: Incident) -> None:
    outcome = run(incident)
    line = store.keep(incident, outcome)
    print(f"\n{incident.name}: {line['findings']}; twin: {line['twin']}; {line['evidence']}")
    assert not wrong(incident, outcome)
