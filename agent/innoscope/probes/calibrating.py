"""What a hit costs on this host: a function of our own, called with and without a probe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from innoscope.errors import KernelUnable
from innoscope.probes.catalog import ENTER, LEAVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.probes.attachment import Attachment

_CALLS = 1000
_ROUNDS = 7


@dataclass(frozen=True, slots=True)
class HitCost:
    """CPU nanoseconds of the probed thread for one hit of an entry probe, of a return probe, with our programs."""

    entry_ns: float
    return_ns: float

    def of(self, at: Sequence[str]) -> float:
        """Seconds for one call of a function probed there."""
        return ((ENTER in at) * self.entry_ns + (LEAVE in at) * self.return_ns) / 1e9


def calibrate(attachment: Attachment) -> HitCost:
    """Measure with the very programs that were loaded; takes some 20 ms of one CPU.

    Raises KernelUnable where our own code cannot be probed.
    """
    from innoscope._native import CALIBRATION_FUNCTION, CodeFile, Uprobe, calibration_run

    file = CodeFile(os.getpid(), "_native.")
    found = [each for each in file.functions([CALIBRATION_FUNCTION]) if each[0] == CALIBRATION_FUNCTION]
    if not found:
        raise KernelUnable(f"{file.shown_path} has no {CALIBRATION_FUNCTION}", remedy="make setup")
    offset = found[0][3]
    enter, leave = attachment.calibration_programs

    def per_call() -> float:
        return median(calibration_run(_CALLS) for _ in range(_ROUNDS)) / _CALLS

    attachment.count_in(os.getpid())
    try:
        plain = per_call()
        at_entry = Uprobe(enter, file.path, offset, os.getpid())
        entry = per_call()
        at_return = Uprobe(leave, file.path, offset, os.getpid(), on_return=True)
        both = per_call()
        at_return.detach()
        at_entry.detach()
    finally:
        attachment.count_in(attachment.target.pid)
    return HitCost(entry_ns=max(0.0, entry - plain), return_ns=max(0.0, both - entry))
