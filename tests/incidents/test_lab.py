"""Each stall is told by its cause first, and its healthy twin is not accused of it.

``INNOSCOPE_INCIDENTS=all`` runs the whole lab, some minutes; else it is these few.
"""

from __future__ import annotations

import os

import pytest

from incidents import store
from incidents.every import INCIDENTS
from incidents.judged import wrong
from incidents.lab import Incident, run

FEW = ("row-lock-97", "stopped", "cpu-loop")
CHOSEN = [one for one in INCIDENTS if one.name in FEW or os.environ.get("INNOSCOPE_INCIDENTS") == "all"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("incident", CHOSEN, ids=lambda incident: incident.name)
def test_the_cause_comes_first(incident: Incident) -> None:
    outcome = run(incident)
    line = store.keep(incident, outcome)
    print(f"\n{incident.name}: {line['findings']}; twin: {line['twin']}; {line['evidence']}")
    assert not wrong(incident, outcome)
