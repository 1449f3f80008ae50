"""Each stall is told by its cause first, and its healthy twin is not accused of it.

``INNOSCOPE_INCIDENTS=all`` runs the whole lab, some minutes; else it is these few.
"""

from __future__ import annotations

import os

import pytest

from incidents.lab import Incident, run
from incidents.scenes import INCIDENTS

FEW = ("row-lock-97", "stopped", "cpu-loop")
CHOSEN = [one for one in INCIDENTS if one.name in FEW or os.environ.get("INNOSCOPE_INCIDENTS") == "all"]


@pytest.mark.parametrize("incident", CHOSEN, ids=lambda incident: incident.name)
def test_the_cause_comes_first(incident: Incident) -> None:
    stall, twin = run(incident)
    print(f"\n{incident.name}: {stall.names}; twin: {twin.names}; {stall.first['evidence']}")
    assert stall.first["name"] == incident.finding, stall.record
    assert incident.finding not in twin.names, twin.record
