"""Run collectors in parallel, each with a timeout.

The runner adds success, duration and reason to the samples, and catches everything that a collector raises.
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
from innoscope.common.workers import Job, Workers, slow_runs
from innoscope.metrics.collectors.errors import CollectorFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Sample

_log = logging.getLogger(__name__)

#: Maximum number of distinct unexpected errors to log.
_MAX_LOGGED: Final = 100
_ERRNOS: Final = {errno.EPERM: "rights", errno.EACCES: "rights", errno.ESRCH: "gone"}


class Collector(Protocol):
    """A source of samples. ``timeout`` is in seconds; ``collect`` should raise CollectorFailed on failure."""

    name: str
    timeout: float

    def collect(self) -> Iterable[Sample]:
        """Return all current samples."""


class Runner:
    """Runs the collectors of one server. A collector that hangs does not delay the others.

    ``workers`` are shared with the runners of other servers. By default, each collector has its own thread.
    ``owner`` names the server in the log. Servers with different values of ``turn`` take turns. The timeouts
    of the collectors are multiplied by ``scale``.
    """

    def __init__(
        self,
        collectors: Iterable[Collector],
        workers: Workers | None = None,
        owner: str = "",
        turn: str = "",
        *,
        scale: float = 1.0,
    ) -> None:
        self._own = None if workers is not None else Workers(size=1)
        shared = workers or self._own
        assert shared is not None  # noqa: S101
        self._runs = [_Run(collector, shared, owner, turn) for collector in collectors]
        self._scale = scale

    def run(self) -> list[Outcome]:
        """Run all collectors. Return one outcome per collector, in order, within the longest timeout."""
        self.start()
        return self.outcomes()

    def start(self) -> None:
        """Start all collectors whose last run has ended.

        Several runners can be started before any is awaited.
        """
        for run in self._runs:
            run.start()

    def outcomes(self, patience_s: float = math.inf, crowding: float = 1.0) -> list[Outcome]:
        """Return the outcomes of the runs that ``start()`` started last.

        For each collector, wait at most its scaled timeout, and at most ``patience_s`` seconds. Both limits
        are multiplied by ``crowding``.
        """
        return [run.outcome(self._scale * crowding, patience_s * crowding) for run in self._runs]

    def close(self) -> None:
        """Prevent further runs. A hung run ends when its collector returns or the process exits."""
        for run in self._runs:
            run.close()
        if self._own is not None:
            self._own.close()


class _Run:
    """A collector and its last run."""

    def __init__(self, collector: Collector, workers: Workers, owner: str, turn: str) -> None:
        self._collector, self._workers, self._owner, self._turn = collector, workers, owner, turn
        self._state = threading.Condition()
        self._busy = self._late = self._closed = False
        self._began = 0.0
        self._slow_runs = 1
        self._outcome: Outcome | None = None
        self._job: Job | None = None  # of the last run
        self._logged: set[str] = set()

    def start(self) -> None:
        """Submit a run, unless an earlier one is still in progress."""
        job = Job(self._collector.name, self._owner, self._work, self._lost, self._turn, self._slow_runs)
        with self._state:
            self._late = self._busy
            if self._busy:
                return
            self._busy, self._began, self._outcome = True, time.monotonic(), None
            self._job = job
        try:
            self._workers.submit(job)
        except BaseException:  # out of memory; the next call must be able to submit a run
            self._workers.cancel(job)
            if not job.started:
                self._busy = False
            raise

    def outcome(self, scale: float, patience_s: float) -> Outcome:
        """Return the outcome of the last run, or a timeout failure if the run has not ended."""
        name, timeout = self._collector.name, min(self._collector.timeout * scale, patience_s)
        with self._state:
            if not self._late:
                rest = self._began + timeout - time.monotonic()
                self._state.wait_for(lambda: self._outcome is not None, max(rest, 0))
                if self._outcome is not None:
                    return self._outcome
            seconds = time.monotonic() - self._began
        words = f"still running after {seconds:.1f} s" if self._late else f"no answer within {timeout:g} s"
        return Outcome(name, False, seconds, (), f"timeout: {words}")

    def close(self) -> None:
        """Cancel a run that has not started."""
        with self._state:
            self._closed = True
        if self._job is not None:
            self._workers.cancel(self._job)

    def _work(self) -> None:
        if not self._closed:
            self._end(self._run())

    def _lost(self) -> None:
        """Record that the worker thread died."""
        seconds = time.monotonic() - self._began
        self._end(Outcome(self._collector.name, False, seconds, (), "error: its thread died"))

    def _end(self, outcome: Outcome) -> None:
        with self._state:
            self._outcome, self._busy = outcome, False
            self._slow_runs = slow_runs(self._slow_runs, outcome.seconds)
            self._state.notify_all()

    def _run(self) -> Outcome:
        began = time.monotonic()
        samples: tuple[Sample, ...] = ()
        reason = None
        try:
            samples = tuple(self._collector.collect())
        except BaseException as error:  # includes panics of the Rust core, which must not end this thread
            reason = self._reason(error)
        return Outcome(self._collector.name, reason is None, time.monotonic() - began, samples, reason)

    def _reason(self, error: BaseException) -> str:
        """Return ``reason: message``. Log unexpected errors with a traceback, once for each message."""
        kind, words = explain(error)
        if kind == "error" and words not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(words)
            _log.error("collector failed", extra={"collector": self._collector.name}, exc_info=error)
        return f"{kind}: {words}"


def explain(error: BaseException) -> tuple[str, str]:
    """Return ``(reason, message)``. The reason is one of the reasons in metrics.yaml."""
    if isinstance(error, InnoscopeError):
        words = error.in_one_line
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
