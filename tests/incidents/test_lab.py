"""Each stall is told by its cause first, and its healthy twin is not accused of it."""

from __future__ import annotations

import pytest

from incidents.lab import Incident, run
from incidents.scenes import INCIDENTS


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda incident: incident.name)
def test_the_cause_comes_first(incident: Incident) -> None:
    stall, twin = run(incident)
    print(f"\n{incident.name}: {stall.names}; twin: {twin.names}; {stall.first['evidence']}")
    assert stall.first["name"] == incident.finding, stall.record
    assert incident.finding not in twin.names, twin.record
