"""Diagnose each server every ten seconds (by default), and export the scores of its findings as metrics."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.daemon.agent.recorder import Recorders
    from innoscope.diagnose.verdict import Verdict

_log = logging.getLogger(__name__)

#: Length of the time range to diagnose, in seconds.
WINDOW_S: Final = 30.0
#: Verdicts older than this many ``refresh`` intervals are omitted, so that no stale scores are exported while
#: the refreshing thread hangs.
_MAX_AGE: Final = 4.0
#: Time limit of ``refresh`` in seconds, checked before each server. A hung sensor delays the diagnosis of
#: every server.
_REFRESH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Judged:
    at: float
    verdict: Verdict


class FindingScores:
    """The latest verdict on each server of this host. Only one thread may call ``refresh``.

    ``on_verdicts`` is called after each ``refresh`` with each server's verdict and its Unix time.

    The evidence comes from the same sources as for /api/findings, except lock owners and the process
    list. Servers are diagnosed continuously, even if no client requests the findings, so these queries
    would be a permanent load.
    """

    def __init__(
        self, recorders: Recorders, interval_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._recorders, self._clock = recorders, clock
        self._max_age_s = _MAX_AGE * interval_s
        self._judged: dict[str, _Judged] = {}
        self.on_verdicts: Callable[[Mapping[str, tuple[float, Verdict]]], None] = lambda _verdicts: None

    def refresh(self, now: float) -> None:
        """Diagnose the last ``WINDOW_S`` seconds of each server. ``now`` is a Unix time.

        At the time limit, the remaining servers keep their previous verdicts until those expire.
        """
        recorders = self._recorders.all()
        judged = {name: one for name, one in self._judged.items() if name in recorders}
        deadline = self._clock() + _REFRESH_S
        for name, recorder in recorders.items():
            if self._clock() > deadline:
                break
            try:
                judged[name] = _Judged(now, judge(recorder.between(now - WINDOW_S, now)))
            except Exception:  # the other servers are still diagnosed
                _log.exception("cannot judge a server", extra={"server": name})
        self._judged = judged
        self.on_verdicts({name: (one.at, one.verdict) for name, one in judged.items()})

    def samples(self, server: str, now: float) -> list[Sample]:
        """Return the metrics of a server; empty if it has no recent verdict."""
        judged = self._judged.get(server)
        if judged is None or not 0 <= now - judged.at <= self._max_age_s:
            return []
        verdict = judged.verdict
        return [
            Sample("findings_up", int(not verdict.blind)),
            Sample("findings_unchecked", sum(len(one.findings) for one in verdict.cannot_tell)),
            *(Sample("finding_score", round(one.score, 1), (one.name,)) for one in verdict.findings),
        ]
