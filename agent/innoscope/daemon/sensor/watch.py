"""One server that is watched: its collectors, and what outlives them when it is restarted."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from innoscope.common.samples import Outcome, Sample
from innoscope.common.workers import Job
from innoscope.daemon.sensor.accumulate import Accumulator, added
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.metrics.collectors.process import ProcessCollector
from innoscope.metrics.collectors.runner import Runner, explain
from innoscope.metrics.collectors.waits import WaitsCollector
from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.sampling.profile_history import ProfileHistory
from innoscope.sampling.snapshot_history import SnapshotHistory
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from innoscope.common.workers import Workers
    from innoscope.metrics.collectors.runner import Collector
    from innoscope.target.model import Target

    Factory: TypeAlias = Callable[[Target], Collector]

_log = logging.getLogger(__name__)

#: However long a collector may take, who asks gets an answer within this. The agent waits for half a second.
PATIENCE_S: Final = 0.35
#: Taking off a server's probes keeps the kernel's lock on all probes for up to 5 s. Those of a process that
#: is dead cost nothing, so its successor, which often begins at once, gets its own first.
LINGER_S: Final = 10.0
#: The kind of job that compiles and attaches probes, and that which takes them off.
ATTACHING: Final = "attach"
ENDING: Final = "end"
#: Single looks are kept for so long: a capture holds the minute before a stall.
LOOKS_S: Final = 180.0
#: Log sequence numbers go on by themselves when their server is restarted.
LASTING: Final = ("redo_written_bytes", "redo_flushed_bytes", "redo_checkpoint_bytes")


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Which probes (None: those on by default), and what they may cost as a share of the server's CPUs."""

    families: frozenset[str] | None = None
    budget: float = DEFAULT_BUDGET


class Watch:
    """All collectors of one server process. ``factories`` make those beyond waits and process, quickly.

    Without ``probes`` no code of the server is probed. All of it runs on ``workers``.
    """

    def __init__(
        self,
        target: Target,
        profiles: ProfileHistory,
        factories: Iterable[Factory],
        *,
        workers: Workers,
        looks: SnapshotHistory | None = None,
        interval_s: float,
        probes: ProbeSettings | None = None,
    ) -> None:
        self.target = target
        self.epoch = (target.pid, target.start_time)
        self._workers = workers
        waits = WaitsCollector(
            target,
            profiles,
            workers=workers,
            interval_s=interval_s,
            looked=looks.add_groups if looks else None,
        )
        self._collectors: list[Collector] = [waits]
        try:
            self._collectors.insert(0, ProcessCollector(target, waits.thread_kinds))
            self._collectors += [_made(factory, target) for factory in factories]
            if probes is not None:
                self._collectors.append(self._prober(probes, waits.thread_kinds))
            self._runner = Runner(self._collectors, workers, str(target.pid))
        except BaseException:  # it is tried again: no looks may go on for this one
            self._close_collectors()
            raise

    def _prober(self, settings: ProbeSettings, kinds: Callable[[], Mapping[int, str]]) -> Collector:
        return ProbesCollector(
            self.target,
            families=settings.families,
            budget=settings.budget,
            kinds=kinds,
            counters=self._own_counters,
            attach_soon=True,
            attach_on=self._attach_on,
        )

    def _attach_on(self, attach: Callable[[], None], delay_s: float) -> None:
        job = Job(ATTACHING, str(self.target.pid), attach)
        if delay_s > 0:
            self._workers.submit_at(time.monotonic() + delay_s, job)
        else:
            self._workers.submit(job)

    def _own_counters(self) -> Mapping[str, float]:
        """The server's own counters, as last read from its memory."""
        found = (getattr(collector, "latest", None) for collector in self._collectors)
        return next((latest() for latest in found if latest is not None), {})

    def start(self) -> None:
        """Begin one run of all collectors."""
        self._runner.start()

    def outcomes(self) -> list[Outcome]:
        """What came of it. A server that has ended is down, whatever its collectors say."""
        outcomes = self._runner.outcomes(PATIENCE_S)
        return outcomes if self.alive else [down(self.target)]

    @property
    def alive(self) -> bool:
        """Whether the process still is there."""
        return still_same(self.target)

    def probes(self) -> list[dict[str, Any]]:
        """What the probes say of themselves; empty without any."""
        return [
            row
            for collector in self._collectors
            if (status := getattr(collector, "status", None)) is not None
            for row in status()
        ]

    def close(self) -> None:
        """End the collectors. One that fails to end is left to the end of the process."""
        self._runner.close()
        self._close_collectors()

    def _close_collectors(self) -> None:
        for collector in self._collectors:
            if (close := getattr(collector, "close", None)) is not None:
                with suppress(Exception):
                    close()


class Slot:
    """A named server over all its restarts: counters go on, the hour of profiles and the looks stay."""

    def __init__(self, target: Target, counters: Collection[str], workers: Workers) -> None:
        self.target = target
        self._workers = workers
        self.profiles = ProfileHistory()
        self.looks = SnapshotHistory(LOOKS_S)
        self.watch: Watch | None = None
        self.ended_at = time.monotonic()
        self._sums = Accumulator(counters, LASTING)

    def end(self) -> None:
        """We end."""
        watch, self.watch, self.ended_at = self.watch, None, time.monotonic()
        if watch is not None:
            watch.close()

    def ended(self) -> None:
        """The server has ended, by itself. Nothing is pressing: first comes its successor."""
        watch, self.watch, self.ended_at = self.watch, None, time.monotonic()
        if watch is not None:
            job = Job(ENDING, str(watch.target.pid), watch.close)
            self._workers.submit_at(time.monotonic() + LINGER_S, job)

    def outcomes(self, watch: Watch | None, target: Target) -> list[Outcome]:
        """What came of the run that ``watch`` began, its counters with their past; without, that it is down.

        ``watch`` and ``target`` are those of one moment: the next server may begin while we ask.
        """
        if watch is None:
            return [down(target)]
        return [self._go_on(outcome, watch) for outcome in watch.outcomes()]

    def _go_on(self, outcome: Outcome, watch: Watch) -> Outcome:
        samples = self._sums.update(outcome.collector, watch.epoch, outcome.samples)
        return replace(outcome, samples=samples, past=added(outcome.samples, samples))


def down(target: Target) -> Outcome:
    """What is said of a server that is not there."""
    reason = f"gone: process {target.pid} has ended"
    return Outcome(ProcessCollector.name, False, 0.0, (Sample("mysqld_up", 0),), reason)


class _Unmade:
    """In the place of a collector that could not be made: it says why at each run."""

    timeout = 1.0

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._why = explain(error)

    def collect(self) -> Iterable[Sample]:
        raise CollectorFailed(*self._why)


def _made(factory: Factory, target: Target) -> Collector:
    try:
        return factory(target)
    except Exception as error:  # the others can do without it
        name = str(getattr(factory, "name", getattr(factory, "__name__", "collector")))
        _log.warning("no collector", extra={"collector": name, "pid": target.pid, "reason": str(error)})
        return _Unmade(name, error)
