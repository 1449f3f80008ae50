"""Collect the counts and the cost of one server's uprobes."""

from __future__ import annotations

import logging
import struct
import threading
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights, NoSuchProcess
from innoscope.common.samples import Histogram, Sample
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.probes import capabilities
from innoscope.probes.address_names import global_mutexes, site_names
from innoscope.probes.attachment import FILE_OPERATIONS, FILES_ROOM, OTHER_SITE, Attachment
from innoscope.probes.build_cache import BccMissing
from innoscope.probes.c_source import THREADS
from innoscope.probes.calibration import HitCost, known_cost
from innoscope.probes.catalog import default_catalog
from innoscope.probes.descriptor_kinds import CountsByKind, DescriptorKinds
from innoscope.probes.governor import DEFAULT_BUDGET, Governor
from innoscope.probes.governor_retry import FIRST_PAUSE_S, MAX_PAUSE_S
from innoscope.probes.selftest import SelfTest
from innoscope.probes.slots import Slot, default_slots
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from innoscope.probes.report import ProbeReport
    from innoscope.target.model import Target

_LOG = logging.getLogger(__name__)

_NS = 1e9
#: Counters that the BPF programs keep in nanoseconds.
_IN_NANOSECONDS = frozenset({"deadlock_search_seconds"})
_READ = FILE_OPERATIONS["pread"]
#: Groups of mysqld_cpu_seconds that the BPF programs distinguish. All other groups count as "other".
_KIND_OF_GROUP = {"page_cleaner": "page_cleaner", "master": "master", "connection": "user"}
#: Metrics labeled by thread kind. Until the kinds are known, the BPF programs treat every thread as a client
#: thread, and these metrics are omitted.
_BY_THREAD_KIND = frozenset({"flushed_pages_by_thread", "checkpoints"})

#: Permanent failures, which are not retried.
_FINAL = (NoSuchProcess, NoRights, KernelUnable, BccMissing)


def on_a_thread(attach: Callable[[], None], delay_s: float) -> None:
    """Call ``attach`` in a new thread after ``delay_s`` seconds."""
    timer = threading.Timer(delay_s, attach)
    timer.name, timer.daemon = "probes", True
    timer.start()


class ProbesCollector:
    """Collects the metrics of one server's probes. ``close`` detaches the probes.

    With ``attach_soon``, the probes are attached in the background by ``attach_on``, because compiling takes
    seconds.

    ``families`` defaults to the families that are enabled by default. ``metrics`` limits the probes to those
    that feed these metrics. ``kinds`` returns the group of each thread (collectors.waits). ``counters``
    returns the server's own counters (collectors.memory), against which the probes are checked.
    """

    name = "probes"
    timeout = 0.5

    def __init__(
        self,
        target: Target,
        *,
        families: frozenset[str] | None = None,
        metrics: frozenset[str] | None = None,
        budget: float = DEFAULT_BUDGET,
        kinds: Callable[[], Mapping[int, str]] = dict,
        counters: Callable[[], Mapping[str, float]] = dict,
        attach_soon: bool = False,
        attach_on: Callable[[Callable[[], None], float], None] = on_a_thread,
    ) -> None:
        self._target = target
        self._families, self._metrics = families, metrics
        self._budget = budget
        self._kinds = kinds
        self._kinds_lock = threading.Lock()
        self._own_counters = counters
        self._selftest = SelfTest(default_catalog().of(families))
        self._notes: dict[str, str] = {}
        self._governor: Governor | None = None
        self._closed = False  # not an Event, whose methods may fail when memory is short
        self._failure: InnoscopeError | None = None
        self._starting = attach_soon
        self._attach_on, self._pause_s = attach_on, FIRST_PAUSE_S
        self._mutexes: list[str] = []
        self._descriptors, self._by_kind = DescriptorKinds(target.pid), CountsByKind()
        self._searched = (time.monotonic(), 0.0)
        #: Names of latch sites by key, bounded by the size of the BPF map.
        self._sites: dict[tuple[int, int], str] = {struct.unpack("=QQ", OTHER_SITE): "other"}
        if attach_soon:
            attach_on(self._start_quietly, 0.0)

    def start(self) -> Governor:
        """Compile, calibrate and attach the probes. Raise InnoscopeError on failure."""
        attachment = Attachment(self._target, self._families, metrics=self._metrics)
        try:
            with translating(self._target.pid):  # the server may exit at any time
                cost = known_cost(attachment)
                self._mutexes = self._name_mutexes(attachment)
                self._update_thread_kinds(attachment)
            governor = Governor(attachment, cost, budget=self._budget)
            governor.start()
        except NoRights as error:
            attachment.close()
            raise capabilities.explain(error) from error
        except BaseException:
            attachment.close()
            raise
        self._governor, self._failure = governor, None
        if self._closed:  # the collector was closed in the meantime
            governor.close()
        return governor

    def _start_quietly(self) -> None:
        """Start the probes. After a failure that may be temporary, such as a lack of memory, retry later."""
        if self._closed:
            return
        try:
            self.start()
        except BaseException as error:  # includes panics of the Rust core, so that they are logged
            final = False
            try:
                self._failure = _explained(error)
                final = isinstance(error, _FINAL)
                again = "never" if final else f"{self._pause_s:.0f}s"
                extra = {"pid": self._target.pid, "reason": self._failure.what, "retry": again}
                _LOG.warning("cannot attach probes", extra=extra | {"remedy": self._failure.remedy})
            finally:  # retry even if the failure cannot be logged
                if not final:
                    self._attach_on(self._start_quietly, self._pause_s)
                    self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)

    def start_once(self) -> Governor:
        """Return the governor. Start it if this does not happen in the background.

        Raise CollectorFailed while it is starting in the background or if that failed, or another
        InnoscopeError if it cannot be started here.
        """
        if self._failure is not None:
            reason = "rights" if isinstance(self._failure, NoRights) else "unsupported"
            raise CollectorFailed(reason, f"{self._failure.what}; {self._failure.remedy}")
        if self._governor is None and self._starting:
            raise CollectorFailed("timeout", "the probes are still being compiled and attached")
        return self._governor or self.start()

    def close(self) -> None:
        """Detach all probes."""
        self._closed = True
        if self._governor is not None:
            self._governor.close()

    def report(self) -> list[ProbeReport]:
        """Return a report on each probe, for display; empty before the probes are attached."""
        reports = self._governor.report() if self._governor else []
        return [replace(each, note=self._notes.get(each.probe, each.note)) for each in reports]

    def status(self) -> list[dict[str, Any]]:
        """Return the report on each probe as a dictionary, for the sensor's socket."""
        return [asdict(report) for report in self.report()]

    def collect(self) -> list[Sample]:
        """Return the current totals of all probes. The totals of sampled probes are estimates."""
        governor = self.start_once()
        self._update_thread_kinds(governor.attachment)
        governor.refresh()
        counted = [*self._counters(governor), *self._histograms(governor)]
        self._notes = self._selftest.compare(_sums(counted), self._own_counters())
        files = governor.totals.files
        by_kind = list(self._files(files))
        self._forget_closed_files(governor.attachment, files.keys())
        return [*counted, *by_kind, *self._latch_sites(governor.totals.sites), *_own(governor)]

    def update_thread_kinds(self) -> None:
        """Pass the current kinds of threads to attached probes. ``collect`` does this too."""
        if self._governor is not None:
            self._update_thread_kinds(self._governor.attachment)

    def _update_thread_kinds(self, attachment: Attachment) -> None:
        with self._kinds_lock:
            kinds = self._kinds()
            attachment.set_thread_kinds(
                {tid: THREADS.index(_KIND_OF_GROUP.get(group, "other")) for tid, group in kinds.items()}
            )

    def _name_mutexes(self, attachment: Attachment) -> list[str]:
        bpf_map = attachment.optional_map("mutexes")
        if bpf_map is None:
            return []
        mutexes = global_mutexes(self._target.pid, default_slots().histograms["mutex_wait_seconds"].count)
        for index, (_, address) in enumerate(mutexes):
            bpf_map.update(struct.pack("=Q", address), struct.pack("=I", index))
        return [name for name, _ in mutexes]

    def _counters(self, governor: Governor) -> Iterable[Sample]:
        fed, counters = _fed_metrics(governor), governor.totals.counters
        if not governor.attachment.known_kinds:
            fed -= _BY_THREAD_KIND
        for slot in default_slots().counters.values():
            if slot.metric not in fed:
                continue
            scale = _NS if slot.metric in _IN_NANOSECONDS else 1
            for index, label in enumerate(slot.labels or ("",)):
                value = counters[slot.first + index] / scale
                yield Sample(slot.metric, value, (label,) if label else ())
            if slot.metric == "deadlock_search_seconds":
                yield self._wall_share(counters[slot.first] / _NS)

    def _wall_share(self, seconds: float) -> Sample:
        now = time.monotonic()
        (before, had), self._searched = self._searched, (now, seconds)
        return Sample("deadlock_search_wall_ratio", (seconds - had) / max(now - before, 1e-9))

    def _histograms(self, governor: Governor) -> Iterable[Sample]:
        fed = _fed_metrics(governor)
        for slot in default_slots().histograms.values():
            if slot.metric in fed:
                yield from self._one_histogram(slot, governor.totals.histograms)

    def _one_histogram(self, slot: Slot, totals: Sequence[Sequence[float]]) -> Iterable[Sample]:
        labels = self._mutexes if slot.labels is None else slot.labels or ("",)
        for index, label in enumerate(labels):
            histogram = _histogram(totals[slot.first + index])
            # A mutex that no thread waited for has no series.
            if slot.labels is not None or histogram.count:
                yield Sample(slot.metric, histogram, (label,) if label else ())

    def _files(self, files: Mapping[bytes, Sequence[float]]) -> Iterable[Sample]:
        counts = {struct.unpack("=II", key): words for key, words in files.items()}
        kinds = self._descriptors.kinds({descriptor for descriptor, _ in counts})
        sums: dict[tuple[str, str], Histogram] = {}
        for (operation, kind), words in self._by_kind.add(counts, kinds).items():
            key = ("read_seconds" if operation == _READ else "fsync_seconds", kind)
            sums[key] = sums.get(key, Histogram((), 0)).plus(_histogram(words))
        for (metric, kind), histogram in sums.items():
            yield Sample(metric, histogram, (kind,))

    def _forget_closed_files(self, attachment: Attachment, files: Collection[bytes]) -> None:
        """Delete entries of closed descriptors before the map is full. Call this after ``_files``."""
        if len(files) > FILES_ROOM:
            descriptors = {key: struct.unpack("=II", key)[0] for key in files}
            closed = self._descriptors.closed(descriptors.values())
            attachment.forget_files(key for key in files if descriptors[key] in closed)

    def _latch_sites(self, sites: Mapping[bytes, float]) -> Iterable[Sample]:
        counts = {struct.unpack("=QQ", key): count for key, count in sites.items()}
        self._sites |= site_names(self._target.pid, set(counts) - set(self._sites))
        for key, count in sorted(counts.items(), key=lambda item: -item[1]):
            yield Sample("latch_spin_waits", count, (self._sites[key],))


def _sums(samples: Iterable[Sample]) -> dict[str, float]:
    """Return each metric's sum over all labels. A histogram contributes its number of observations."""
    sums: dict[str, float] = {}
    for sample in samples:
        value = sample.value.count if isinstance(sample.value, Histogram) else sample.value
        sums[sample.metric] = sums.get(sample.metric, 0) + value
    return sums


def _fed_metrics(governor: Governor) -> set[str]:
    """Return the metrics that at least one of the located probes feeds."""
    return {metric for point in governor.attachment.points for metric in point.placed.feeds}


def _histogram(words: Sequence[float]) -> Histogram:
    return Histogram(tuple(map(round, words[1:])), round(words[0]))


def _explained(error: BaseException) -> InnoscopeError:
    if isinstance(error, InnoscopeError):
        return error
    return InnoscopeError(f"cannot start the probes: {type(error).__name__}: {error}")


def _maps(attachment: Attachment) -> Iterable[Sample]:
    yield Sample("probe_map_entries", float(attachment.known_kinds), ("thread_kinds",))
    for name, count in attachment.dropped().items():
        yield Sample("probe_map_dropped", float(count), (name,))


def _own(governor: Governor) -> Iterable[Sample]:
    yield Sample("probe_governor_up", float(governor.failures.why is None))
    yield from _maps(governor.attachment)
    for report in governor.report():
        label = (report.probe,)
        attached = report.state in {"attached", "sampled"}
        yield Sample("probe_attached", float(attached), label)
        if report.state == "missing":
            continue
        yield Sample("probe_hits", report.hits, label)
        yield Sample("probe_cost_seconds", report.cost_seconds, label)
        yield Sample("probe_duty_ratio", report.duty, label)
    yield Sample("probe_overhead_ratio", governor.overhead)
    yield Sample("probe_budget_ratio", governor.budget)
    yield from _hit_costs(governor.cost)


def _hit_costs(cost: HitCost) -> Iterable[Sample]:
    yield Sample("probe_hit_cost_seconds", cost.entry_ns / _NS, ("entry",))
    yield Sample("probe_hit_cost_seconds", cost.stepped_ns / _NS, ("stepped_entry",))
    yield Sample("probe_hit_cost_seconds", cost.return_ns / _NS, ("return",))
