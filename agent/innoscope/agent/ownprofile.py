"""A profile of the agent, taken by itself, once, when it passes its CPU budget: for ``innoscope doctor``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from innoscope import __version__
from innoscope.agent.privileges import readable_by_children
from innoscope.collectors.own import cpu_seconds
from innoscope.errors import InnoscopeError
from innoscope.selfprofile import folded, kept, pyspy

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.agent.config import Own
    from innoscope.collectors.own import OwnProfiles

_log = logging.getLogger(__name__)


class CpuBudget:
    """Watches what we use. A burst counts as what it is over the whole window, however short it was."""

    def __init__(
        self,
        share: float,
        window_s: float,
        used: Callable[[], float] = cpu_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._share, self._window_s = share, window_s
        self._used, self._clock = used, clock
        self._readings: deque[tuple[float, float]] = deque()

    def passed(self) -> float | None:
        """The share of one core that was used in the window, where it is more than the budget."""
        now, used = self._clock(), self._used()
        while len(self._readings) > 1 and self._readings[1][0] <= now - self._window_s:
            self._readings.popleft()
        self._readings.append((now, used))
        began, before = self._readings[0]
        share = (used - before) / max(self._window_s, now - began)
        return share if share > self._share else None


class OwnProfile:
    """``beat`` is called every few seconds by one thread; the profile is taken by another."""

    def __init__(self, settings: Own, counts: OwnProfiles) -> None:
        self._settings = settings
        self._counts = counts
        self._budget = CpuBudget(settings.cpu_budget, settings.window_seconds)
        self._begun = False
        self._done = settings.cpu_budget == 0
        self._told = False

    def begin(self) -> None:
        """What is used from now on counts. Again: nothing."""
        if not self._begun:
            self._budget.passed()
        self._begun = True

    def beat(self) -> None:
        """Take the profile if the time has come: once in our life, and not again while the last is fresh."""
        if self._done or not self._begun:
            return
        used = self._budget.passed()
        if used is None:
            return
        if kept.is_fresh():
            if not self._told:
                _log.warning(
                    "CPU budget passed again", extra={"used": f"{used:.1%}", "kept": str(kept.path())}
                )
            self._told = True
            return
        self._done = True
        threading.Thread(target=self._take, args=(used,), name="self-profile", daemon=True).start()

    def _take(self, used: float) -> None:
        try:
            self._keep(used)
            self._counts.taken += 1
        except InnoscopeError as error:
            self._counts.failed += 1
            reason = {"used": f"{used:.1%}", "reason": error.what, "remedy": error.remedy}
            _log.warning("CPU budget passed, and no profile", extra=reason)
        except Exception:
            self._counts.failed += 1
            _log.exception("CPU budget passed, and no profile")

    def _keep(self, used: float) -> None:
        settings = self._settings
        with readable_by_children():
            raw = pyspy.record(pyspy.Order(os.getpid(), round(settings.profile_seconds)))
        stacks = folded.parse(raw)
        why = kept.Why(
            time.time(), os.getpid(), __version__, used, settings.cpu_budget, settings.window_seconds,
            settings.profile_seconds,
        )  # fmt: skip
        where = kept.write(stacks, why)
        found = folded.functions(stacks)
        top = found[0].name if found else "it was over by then"
        _log.warning("CPU budget passed", extra={"used": f"{used:.1%}", "profile": str(where), "top": top})
