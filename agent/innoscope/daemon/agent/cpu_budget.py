"""Warn in the log if the agent uses more CPU time than its budget."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.daemon.agent.config import Own

_log = logging.getLogger(__name__)


class CpuBudget:
    """Compares the CPU time of consecutive windows with the budget.

    The first window starts with the first ``check``.
    """

    def __init__(self, settings: Own) -> None:
        self._settings = settings
        self._start: tuple[float, float] | None = None
        self._over = False

    def check(self, now: float, used: float) -> None:
        """Log a warning at the end of a window over budget, unless the previous window was also over budget.

        ``now`` is monotonic time, ``used`` is the agent's total CPU time so far, both in seconds.
        """
        began, before = self._start = self._start or (now, used)
        if now - began < self._settings.window_seconds:
            return
        share = (used - before) / (now - began)
        over = 0 < self._settings.cpu_budget < share
        if over and not self._over:
            figures = {"used": f"{share:.1%}", "budget": f"{self._settings.cpu_budget:.1%}"}
            _log.warning("CPU budget exceeded", extra=figures | {"remedy": "sudo innoscope self-profile"})
        self._start, self._over = (now, used), over
