"""A capture of what was gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose.incident.codec import plain
from innoscope.diagnose.incident.files import taken
from innoscope.diagnose.incident.model import Capture
from innoscope.diagnose.text import record
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.server_facts import Fetched
    from innoscope.diagnose.verdict import Verdict


def captured(
    evidence: Evidence, fetched: Fetched, *, before: Evidence | None = None, trigger: str | None = None
) -> tuple[Capture, Verdict]:
    """The capture, and what is said of it: judged as its reader will see it."""
    evidence = plain(evidence)
    verdict = judge(evidence)
    capture = Capture(
        taken=taken(),
        evidence=evidence,
        before=before,
        verdict=record(evidence, verdict),
        status=fetched.status,
        variables=fetched.variables,
        trigger=trigger,
        missing=fetched.missing,
    )
    return plain(capture), verdict
