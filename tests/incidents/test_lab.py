"""Test that `diagnose` reports the cause of each stall first, and does not report it for the healthy twin."""

from __future__ import annotations

import pytest

from incidents import lab_results as store
from incidents.all_incidents import INCIDENTS
from incidents.expectations import errors
from incidents.lab import Incident, run
from scale import long


@long("tests/live/test_diagnose_less.py and test_incident_live.py diagnose stalls")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_cause_is_the_first_finding(incident: Incident) -> None:
    outcome = run(incident)
    line = store.keep(incident, outcome)
    print(f"\n{incident.name}: {line['findings']}; twin: {line['twin']}; {line['evidence']}")
    assert list(errors(incident, outcome)) == []
