"""A watched server: its collectors, and the state that is preserved across restarts of the server."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from innoscope.common import slowness
from innoscope.common.samples import Outcome, Sample
from innoscope.common.workers import SLOW_RUNS, Job
from innoscope.daemon.sensor.accumulate import Accumulator, added
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.metrics.collectors.process import ProcessCollector
from innoscope.metrics.collectors.runner import Runner, explain
from innoscope.metrics.collectors.waits import WaitsCollector, open_with_statements
from innoscope.probes.governor import DEFAULT_BUDGET
from innoscope.sampling.profile_history import ProfileHistory
from innoscope.sampling.sessions.buffer import SampleBuffer
from innoscope.sampling.snapshot_history import SnapshotHistory
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from innoscope.common.workers import Workers
    from innoscope.metrics.collectors.runner import Collector
    from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget
    from innoscope.target.model import Target

    Factory: TypeAlias = Callable[[Target], Collector]

_log = logging.getLogger(__name__)

#: The reply is sent after this many seconds even if a collector is still running. By default, the agent waits
#: 0.5 s. Both limits are longer on a slow host and with many servers.
PATIENCE_S: Final = 0.35
#: Seconds until the probes of an exited server are detached. Detaching holds the kernel's lock on all probes
#: for up to 5 s. Probes of an exited process cost nothing, so a restarted server's probes are attached first.
LINGER_S: Final = 10.0
#: Kind of the jobs that compile and attach probes.
ATTACHING: Final = "attach"
#: Kind of the jobs that detach probes.
ENDING: Final = "end"
#: How long profiles are stored, in seconds. By default, the agent fetches them every 10 s and stores an hour.
PROFILES_S: Final = 600.0
#: How long individual snapshots are stored, in seconds. A capture includes the minute before a stall.
SNAPSHOTS_S: Final = 180.0
#: Counters that the server itself does not reset when it restarts, because they are log sequence numbers.
PERSISTENT: Final = ("redo_written_bytes", "redo_flushed_bytes", "redo_checkpoint_bytes")


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """Probe families to attach (None: the default ones), and their budget as a share of the server's CPUs."""

    families: frozenset[str] | None = None
    budget: float = DEFAULT_BUDGET


class WatchedServer:
    """Owns all collectors of one server process. They run on ``workers``, which tenants share in rotation.

    ``factories`` create all collectors except process, waits and probes, and must return quickly. If
    ``probes`` is None, no probes are attached to the server. ``method`` is the method for copying stacks.
    """

    def __init__(
        self,
        target: Target,
        profiles: ProfileHistory,
        factories: Iterable[Factory],
        *,
        workers: Workers,
        tenant: str,
        budget: SnapshotBudget,
        snapshots: SnapshotHistory | None = None,
        samples: SampleBuffer | None = None,
        interval_s: float,
        probes: ProbeSettings | None = None,
        method: str = "auto",
    ) -> None:
        self.target = target
        self.epoch = (target.pid, target.start_time)
        self._workers, self._tenant = workers, tenant
        self._prober: ProbesCollector | None = None
        self._waits = waits = WaitsCollector(
            target,
            profiles,
            workers=workers,
            interval_s=interval_s,
            on_snapshot=snapshots.add_groups if snapshots else None,
            on_threads=samples.add if samples else None,
            on_kinds=self._update_thread_kinds,
            open_source=partial(open_with_statements, workers=workers, method=method),
            turn=tenant,
            budget=budget,
        )
        self._collectors: list[Collector] = [waits]
        try:
            self._collectors.insert(0, ProcessCollector(target, waits.thread_kinds))
            self._collectors += [_create(factory, target) for factory in factories]
            if probes is not None:
                self._prober = self._create_prober(probes, waits.thread_kinds)
                self._collectors.append(self._prober)
            self._runner = Runner(self._collectors, workers, str(target.pid), tenant, scale=slowness.factor())
        except BaseException:  # the sensor retries: this attempt must not continue to take snapshots
            self._close_collectors()
            raise

    def _create_prober(
        self, settings: ProbeSettings, kinds: Callable[[], Mapping[int, str]]
    ) -> ProbesCollector:
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
        """Attach the probes once a snapshot has shown which threads belong to clients.

        Until the kinds of threads are known, probes count each page as written by a client.
        """
        job = Job(ATTACHING, str(self.target.pid), attach, turn=self._tenant)
        if delay_s > 0:  # a retry, which comes after the first attempts for other servers
            job.slow_runs = SLOW_RUNS
            self._workers.submit_at(time.monotonic() + delay_s, job)
        else:
            self._waits.after_first(partial(self._workers.submit, job))

    def _update_thread_kinds(self) -> None:
        """Pass the kinds of new threads to the probes. If that fails, the next scrape reports the reason."""
        if self._prober is not None:
            with suppress(Exception):
                self._prober.update_thread_kinds()

    def _own_counters(self) -> Mapping[str, float]:
        """Return the server's own counters as last read from its memory."""
        found = (getattr(collector, "latest", None) for collector in self._collectors)
        return next((latest() for latest in found if latest is not None), {})

    def start(self) -> None:
        """Start a run of all collectors."""
        self._runner.start()

    def outcomes(self, crowding: float = 1.0) -> list[Outcome]:
        """Return the outcomes of the run. A server that has exited is reported as down.

        ``crowding`` extends the time limits, because all servers run their collectors at the same time.
        """
        outcomes = self._runner.outcomes(slowness.scaled(PATIENCE_S), crowding)
        return outcomes if self.alive else [down(self.target)]

    @property
    def alive(self) -> bool:
        """Return whether the server's process is still running."""
        return still_same(self.target)

    def probes(self) -> list[dict[str, Any]]:
        """Return the status of each probe; empty if there are no probes."""
        return [
            row
            for collector in self._collectors
            if (status := getattr(collector, "status", None)) is not None
            for row in status()
        ]

    def close(self) -> None:
        """Close the collectors. Ignore errors: the kernel releases all resources when the sensor exits."""
        self._runner.close()
        self._close_collectors()

    def _close_collectors(self) -> None:
        for collector in self._collectors:
            if (close := getattr(collector, "close", None)) is not None:
                with suppress(Exception):
                    close()


class ServerSlot:
    """A named server. Its counters, profiles, snapshots and samples are preserved across its restarts."""

    def __init__(self, target: Target, counters: Collection[str], workers: Workers) -> None:
        self.target = target
        self._workers = workers
        self.profiles = ProfileHistory(span_s=PROFILES_S)
        self.snapshots = SnapshotHistory(SNAPSHOTS_S)
        self.samples = SampleBuffer()
        self.watch: WatchedServer | None = None
        self.ended_at = time.monotonic()
        self._accumulator = Accumulator(counters, PERSISTENT)

    @property
    def alive(self) -> bool:
        """Return whether the server is watched and still running; True if /proc cannot be read."""
        try:
            return self.watch is not None and self.watch.alive
        except OSError:
            return True

    def share_memory(self, servers: int) -> None:
        """Limit the memory of this server's histories. ``servers`` is the number of all slots."""
        for history in (self.profiles, self.snapshots, self.samples):
            history.share(servers)

    def end(self) -> None:
        """Stop watching the server, and close its collectors immediately."""
        watch, self.watch, self.ended_at = self.watch, None, time.monotonic()
        if watch is not None:
            watch.close()

    def ended(self) -> None:
        """Mark the server as exited. Its collectors are closed after ``LINGER_S``."""
        watch, self.watch, self.ended_at = self.watch, None, time.monotonic()
        if watch is not None:
            job = Job(ENDING, str(watch.target.pid), watch.close)
            self._workers.submit_at(time.monotonic() + LINGER_S, job)

    def outcomes(self, watch: WatchedServer | None, target: Target, crowding: float) -> list[Outcome]:
        """Return the outcomes of ``watch``, with counters continued across restarts.

        If ``watch`` is None, report the server as down. The caller must read ``watch`` and ``target``
        together, because the server may be replaced at any time.
        """
        if watch is None:
            return [down(target)]
        return [self._continued(outcome, watch) for outcome in watch.outcomes(crowding)]

    def _continued(self, outcome: Outcome, watch: WatchedServer) -> Outcome:
        samples = self._accumulator.update(outcome.collector, watch.epoch, outcome.samples)
        return replace(outcome, samples=samples, past=added(outcome.samples, samples))


def down(target: Target) -> Outcome:
    """Return the outcome for a server that has exited."""
    reason = f"gone: process {target.pid} has exited"
    return Outcome(ProcessCollector.name, False, 0.0, (Sample("mysqld_up", 0),), reason)


class _FailedCollector:
    """Replaces a collector that could not be created. Each run fails with the reason."""

    timeout = 1.0

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._reason = explain(error)

    def collect(self) -> Iterable[Sample]:
        raise CollectorFailed(*self._reason)


def _create(factory: Factory, target: Target) -> Collector:
    try:
        return factory(target)
    except Exception as error:  # the other collectors can run without it
        name = str(getattr(factory, "name", getattr(factory, "__name__", "collector")))
        _log.warning(
            "cannot create a collector", extra={"collector": name, "pid": target.pid, "reason": str(error)}
        )
        return _FailedCollector(name, error)
