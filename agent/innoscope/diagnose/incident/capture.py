"""Build the contents of an incident file from the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose.incident.codec import plain
from innoscope.diagnose.incident.files import capture_origin
from innoscope.diagnose.incident.model import Capture
from innoscope.diagnose.text import record
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.server_facts import ServerFacts
    from innoscope.diagnose.verdict import Verdict


def make_capture(
    evidence: Evidence, fetched: ServerFacts, *, before: Evidence | None = None, trigger: str | None = None
) -> tuple[Capture, Verdict]:
    """Return the capture and its verdict.

    The evidence is encoded and decoded before the rules are applied, so that readers of the file get the same
    verdict.
    """
    evidence = plain(evidence)
    verdict = judge(evidence)
    capture = Capture(
        taken=capture_origin(),
        evidence=evidence,
        before=before,
        verdict=record(evidence, verdict),
        status=fetched.status,
        variables=fetched.variables,
        trigger=trigger,
        missing=fetched.missing,
    )
    return plain(capture), verdict
