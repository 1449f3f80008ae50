"""Runs collectors side by side, each for no longer than it may.

Success, duration and reason are added here and only here; whatever a collector raises ends here.
"""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights, NoSuchProcess
from innoscope.common.samples import Outcome
from innoscope.common.workers import Job, Workers
from innoscope.metrics.collectors.errors import CollectorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Sample

_log = logging.getLogger(__name__)

#: A collector that took longer the last time, or has not run yet, runs on the threads for slow runs: a server
#: that is slow to read must not delay the others.
_QUICK_S: Final = 0.1
#: Distinct texts of unexpected errors that are remembered as logged.
_LOGGED_KEPT: Final = 100
_ERRNOS: Final = {errno.EPERM: "rights", errno.EACCES: "rights", errno.ESRCH: "gone"}


class Collector(Protocol):
    """One source of samples. ``timeout`` is seconds; ``collect`` may raise anything, CollectorFailed best."""

    name: str
    timeout: float

    def collect(self) -> Iterable[Sample]:
        """All samples now."""


class Runner:
    """Runs the collectors of one server. One that hangs holds up nobody else.

    ``workers`` are shared with the runners of other servers; without them each collector has a thread of its
    own. ``owner`` names the server in the log.
    """

    def __init__(
        self, collectors: Iterable[Collector], workers: Workers | None = None, owner: str = ""
    ) -> None:
        self._own = None if workers is not None else Workers(size=1)
        shared = workers or self._own
        assert shared is not None  # noqa: S101
        self._runs = [_Run(collector, shared, owner) for collector in collectors]

    def run(self) -> list[Outcome]:
        """One outcome a collector, in their order, after the longest timeout at the latest."""
        self.start()
        return self.outcomes()

    def start(self) -> None:
        """Let all begin that are not still at an earlier run; several runners can so work side by side."""
        for run in self._runs:
            run.start()

    def outcomes(self, patience_s: float = math.inf) -> list[Outcome]:
        """What came of the last ``start()``, waiting for each no longer than it may take, or than that."""
        return [run.outcome(patience_s) for run in self._runs]

    def close(self) -> None:
        """Begin no more runs; one that hangs ends with its collector or with the process."""
        for run in self._runs:
            run.close()
        if self._own is not None:
            self._own.close()


class _Run:
    """One collector and its last run."""

    def __init__(self, collector: Collector, workers: Workers, owner: str) -> None:
        self._collector, self._workers, self._owner = collector, workers, owner
        self._state = threading.Condition()
        self._busy = self._late = self._closed = False
        self._began = 0.0
        self._last_s = math.inf  # how long the last run took
        self._outcome: Outcome | None = None
        self._logged: set[str] = set()

    def start(self) -> None:
        """Ask for one run, unless an earlier one is still under way."""
        with self._state:
            self._late = self._busy
            if self._busy:
                return
            self._busy, self._began, self._outcome = True, time.monotonic(), None
        name = self._collector.name
        kind = name if self._last_s <= _QUICK_S else slow_kind(name)
        self._workers.submit(Job(kind, self._owner, self._work, self._lost))

    def outcome(self, patience_s: float) -> Outcome:
        """The outcome of that run, or that there is none in time."""
        name, timeout = self._collector.name, min(self._collector.timeout, patience_s)
        with self._state:
            if not self._late:
                rest = self._began + timeout - time.monotonic()
                self._state.wait_for(lambda: self._outcome is not None, max(rest, 0))
                if self._outcome is not None:
                    return self._outcome
            seconds = time.monotonic() - self._began
        words = f"still running since {seconds:.1f} s" if self._late else f"no answer within {timeout:g} s"
        return Outcome(name, False, seconds, (), f"timeout: {words}")

    def close(self) -> None:
        """Let a run that has not begun be none."""
        with self._state:
            self._closed = True

    def _work(self) -> None:
        if not self._closed:
            self._end(self._run())

    def _lost(self) -> None:
        """The thread that ran it died."""
        seconds = time.monotonic() - self._began
        self._end(Outcome(self._collector.name, False, seconds, (), "error: its thread died"))

    def _end(self, outcome: Outcome) -> None:
        with self._state:
            self._outcome, self._last_s, self._busy = outcome, outcome.seconds, False
            self._state.notify_all()

    def _run(self) -> Outcome:
        began = time.monotonic()
        samples: tuple[Sample, ...] = ()
        reason = None
        try:
            samples = tuple(self._collector.collect())
        except BaseException as error:  # a panic of the Rust core too: this thread must live on
            reason = self._reason(error)
        return Outcome(self._collector.name, reason is None, time.monotonic() - began, samples, reason)

    def _reason(self, error: BaseException) -> str:
        """``reason: words``. What nobody foresaw is logged with its traceback, once for each text."""
        kind, words = explain(error)
        if kind == "error" and words not in self._logged and len(self._logged) < _LOGGED_KEPT:
            self._logged.add(words)
            _log.error("collector failed", extra={"collector": self._collector.name}, exc_info=error)
        return f"{kind}: {words}"


def slow_kind(name: str) -> str:
    """Return the kind of job that a collector's slow runs are."""
    return f"{name}-slow"


def explain(error: BaseException) -> tuple[str, str]:
    """``(reason, words)``: reason as in metrics.yaml, words for a person."""
    if isinstance(error, InnoscopeError):
        words = f"{error.what} ({error.remedy})" if error.remedy else error.what
        if isinstance(error, CollectorFailed):
            return error.reason, words
        for kind, reason in ((NoSuchProcess, "gone"), (NoRights, "rights"), (KernelUnable, "unsupported")):
            if isinstance(error, kind):
                return reason, words
        return "error", words
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, OSError):
        return _ERRNOS.get(error.errno or 0, "error"), words
    return "error", words
