"""From what a watcher gathered to a capture for a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose.judging import judge
from innoscope.diagnose.words import record
from innoscope.incident.files import taken
from innoscope.incident.model import Capture
from innoscope.watch.triggers import shown

if TYPE_CHECKING:
    from innoscope.diagnose.judging import Verdict
    from innoscope.watch.loop import Stalled


def captured(stalled: Stalled) -> tuple[Capture, Verdict]:
    """The capture, and what is said of it."""
    verdict = judge(stalled.evidence)
    words = f"{stalled.trigger.text} ({shown(stalled.number)})"
    return (
        Capture(
            taken(),
            stalled.evidence,
            stalled.before,
            record(stalled.evidence, verdict),
            trigger=words,
        ),
        verdict,
    )
