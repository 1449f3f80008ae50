"""The sensor: find and watch the servers on this host, and answer the agent's requests."""

from __future__ import annotations

import logging
import os
import resource
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from innoscope import __version__
from innoscope.common import slowness
from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import Outcome
from innoscope.common.supervision import Supervisor, Trouble
from innoscope.common.workers import Job, Workers
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.messages import ServerReply
from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.daemon.protocol.stack_encoding import encode_snapshots
from innoscope.daemon.sensor import replies
from innoscope.daemon.sensor.identification import IDENTIFYING, IDENTIFYING_THREADS, Identifier
from innoscope.daemon.sensor.selected_servers import SelectedServers
from innoscope.daemon.sensor.server_selection import Admission
from innoscope.daemon.sensor.watch import ATTACHING, ENDING, ServerSlot, WatchedServer
from innoscope.memory.statements.source import LEARNING
from innoscope.metrics import registry
from innoscope.metrics.collectors.memory import ABANDON_AFTER
from innoscope.metrics.collectors.own import resident_bytes
from innoscope.metrics.collectors.runner import explain
from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget
from innoscope.probes import guard
from innoscope.target import allowed_users
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from innoscope.common.supervision import Beat
    from innoscope.daemon.sensor.identification import Identified
    from innoscope.daemon.sensor.watch import Factory, ProbeSettings
    from innoscope.target.allowed_users import OwnerRule
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

DISCOVER_S: Final = 2.0
#: How long an exited server is reported as down, in seconds, unless a new server gets its name.
REMEMBER_S: Final = 3600.0
#: Maximum number of exited servers to report; the oldest are dropped. Test hosts start thousands of servers.
MAX_ENDED: Final = 16
_END_S: Final = 0.5
#: Seconds until a server whose name is not final, or that could not be watched, is identified again; doubled
#: after each attempt.
_RETRY_S: Final = 2.0
#: Maximum pause in seconds between attempts to watch a server.
_MAX_RETRY_S: Final = 60.0
#: Number of threads for the kinds of jobs that do not use the default of 4. Attaching runs a compiler, which
#: needs 100 MB. At shutdown, all servers are detached at the same time.
_THREADS: Final = {ATTACHING: 2, ENDING: 16, IDENTIFYING: IDENTIFYING_THREADS, LEARNING: 1}
#: Seconds after which a job counts as stuck. Attaching one server's probes and reading its debug information
#: can take tens of seconds.
_STUCK_AFTER: Final = {ATTACHING: 120.0, LEARNING: 120.0}
#: Seconds without a heartbeat after which a thread counts as hung.
_HANGS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SensorSettings:
    """The sensor's settings.

    ``names`` maps pids (as strings) and socket paths to server names. If ``only`` is not empty, only servers
    with these pids and sockets are watched (selected_servers.py). If ``probes`` is None, no uprobes are
    attached. ``rule`` defines which users may own a server. ``method`` is the method for copying stacks.
    """

    interval_s: float = 1.0
    names: Mapping[str, str] = field(default_factory=dict)
    probes: ProbeSettings | None = None
    only: frozenset[str] = frozenset()
    rule: OwnerRule = field(default_factory=allowed_users.load)
    method: str = "auto"


@dataclass(slots=True)
class _Known:
    """An identified server process, which is identified again at ``retry_at``.

    ``retry_at`` is infinite if the process's name and its selection are final.
    """

    name: str
    retry_s: float
    retry_at: float


@dataclass(slots=True)
class _Failing:
    """A process that could not be watched. The retry is due at ``retry_at``; ``reason`` was logged."""

    reason: str
    retry_s: float
    retry_at: float


class Sensor:
    """Watches all servers. Only one thread may call ``tick``; the other methods are thread-safe."""

    def __init__(
        self,
        settings: SensorSettings,
        factories: Sequence[Factory] = (),
        *,
        proc: ProcFs | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._settings = settings
        self._factories = tuple(factories)
        self._proc = proc or ProcFs()
        names = ServerNames(settings.names, self._proc)
        self._selected = SelectedServers(settings.only, self._proc)
        self._admission = Admission(settings.rule, names, self._proc)
        self._counters = frozenset(
            metric.name for metric in registry.default() if metric.kind in ("counter", "histogram")
        )
        self._supervisor = supervisor or Supervisor()
        self._workers = Workers(sizes=_THREADS, stuck_after=_STUCK_AFTER, abandon_after=ABANDON_AFTER)
        self._budget = SnapshotBudget()
        also = (names.try_sockets, self._selected.try_sockets)
        self._identifier = Identifier(self._proc, self._workers, self._admission.tenant, also)
        self._failing: dict[int, _Failing] = {}
        self._failures = 0
        self._known: dict[int, _Known] = {}
        self._slots: dict[str, ServerSlot] = {}
        self._lock = threading.Lock()  # protects _slots
        self._collecting = threading.Lock()
        self._collected: tuple[float, list[ServerReply]] = (-1.0, [])
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def run(self, ended: threading.Event) -> None:
        """Search for servers every 2 s and notify systemd's watchdog until ``ended`` is set.

        Raise GaveUp if a thread keeps failing.
        """
        self._supervisor.start("workers", self._workers.run, _HANGS_S)
        self._supervisor.start("discovery", partial(self._discover, ended), _HANGS_S)
        self._supervisor.observe("guard", guard.silent_s, _HANGS_S)
        self._supervisor.watch(ended)

    def _discover(self, ended: threading.Event, beat: Beat) -> None:
        while True:
            beat()
            try:
                self.tick(beat)
            except Exception:  # must not affect servers that are already watched
                _log.exception("cannot search for servers")
            else:
                self._supervisor.ready()
            if ended.wait(DISCOVER_S):
                return

    def tick(self, beat: Beat = lambda: None) -> None:
        """Start watching new servers, and stop watching exited ones. Skip servers that cannot be watched.

        A process whose identification takes a long time does not delay the others (identification.py).
        """
        now = time.monotonic()
        resting = {pid for pid, failing in self._failing.items() if now < failing.retry_at}
        excluded = self._selected.excluded()
        pids = self._admission.pids(self._known.keys(), excluded, resting)
        self._remove_ended(set(pids), now)
        self._selected.forget_others(pids)
        for gone in self._failing.keys() - set(pids):
            del self._failing[gone]
        due = [pid for pid in pids if pid not in excluded and self._is_due(pid, now)]
        for pid, identification in self._identifier.ended(pids, due, beat):
            try:
                self._admit(pid, identification.found(), now)
            except BaseException as error:  # including panics of the Rust core: watch the other servers
                self._failed(pid, error, now)
            else:
                self._failing.pop(pid, None)
        slots = self._named_slots()
        for _, slot in slots:
            slot.share_memory(len(slots))

    def _is_due(self, pid: int, now: float) -> bool:
        """Return whether a process is new, or its next identification is due."""
        known, failing = self._known.get(pid), self._failing.get(pid)
        return (known is None or now >= known.retry_at) and (failing is None or now >= failing.retry_at)

    def _failed(self, pid: int, error: BaseException, now: float) -> None:
        """Schedule the retry, and log the error unless it is the same as before."""
        self._failures += 1
        before = self._failing.get(pid)
        retry_s = min(2 * before.retry_s, _MAX_RETRY_S) if before else _RETRY_S
        reason = f"{type(error).__name__}: {error}"
        self._failing[pid] = _Failing(reason, retry_s, now + retry_s)
        if before is not None and before.reason == reason:
            return
        expected = isinstance(error, (OSError, InnoscopeError))
        _log.log(
            logging.INFO if expected else logging.ERROR,
            "cannot watch a server",
            extra={"pid": pid, "reason": reason, "again_in_s": retry_s},
            exc_info=None if expected else error,
        )

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to one request from the socket. Raise BadMessage if the request is invalid."""
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            "hello": self.hello,
            "collect": self.collect,
            "profiles": lambda: replies.profiles(self._named_slots(), request.get("cursor")),
            "samples": lambda: replies.samples(self._named_slots(), request.get("cursor")),
            "probes": self.probes,
            "snapshots": lambda: self.snapshots(request),
        }
        if (call := calls.get(str(request.get("call")))) is None:
            raise messages.BadMessage(f"unknown call {str(request.get('call'))[:40]!r}")
        return call()

    def hello(self) -> dict[str, Any]:
        """Return the sensor's identity, its protocol version and the names of its servers."""
        names = [name for name, _ in self._named_slots()]
        return self._identity() | {"protocol": messages.VERSION, "servers": names}

    def collect(self) -> dict[str, Any]:
        """Return the results of all collectors, which run in parallel. Concurrent requests share one run."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        servers = messages.encode_servers(self._run_collectors())
        return self._identity() | {
            "cpu_seconds": usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime,
            "rss_bytes": resident_bytes(),
            "trouble": asdict(self._trouble()),
            **servers,
            "sent_at": time.time(),
        }

    def snapshots(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the snapshots of ``server`` between two Unix times, with ``stacks`` on request.

        For a server that is not watched, the lists are empty.
        """
        wanted = messages.decoded(request, messages.SnapshotsRequest)
        with self._lock:
            slot = self._slots.get(wanted.server)
        if slot is None:
            return encode_snapshots((), ())
        snapshots, seen = slot.snapshots.between(wanted.begin, wanted.end)
        return encode_snapshots(snapshots, seen if wanted.stacks is True else ())

    def _named_slots(self) -> list[tuple[str, ServerSlot]]:
        with self._lock:
            return list(self._slots.items())

    def probes(self) -> dict[str, Any]:
        """Return the status of each server's probes."""
        return {
            "servers": {
                name: watch.probes() for name, _, _, watch in self._watched_servers() if watch is not None
            }
        }

    def close(self) -> None:
        """Stop watching all servers in parallel, and wait up to 0.5 s for all threads.

        Work that takes longer is abandoned: the kernel detaches the remaining probes when the process exits.
        """
        slots, done = self._named_slots(), threading.Semaphore(0)
        for name, slot in slots:
            self._workers.submit(Job(ENDING, name, partial(_end, slot, done), done.release))
        deadline = time.monotonic() + _END_S
        for _ in slots:
            done.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._workers.close(max(0.0, deadline - time.monotonic()))
        self._supervisor.join_all(max(0.0, deadline - time.monotonic()))

    def _run_collectors(self) -> list[ServerReply]:
        """Return the results of a new run of all collectors, or of one that ended after this call began."""
        asked = time.monotonic()
        with self._collecting:
            if self._collected[0] < asked:
                found = self._watched_servers()
                for _, _, _, watch in found:
                    if watch is not None:
                        watch.start()
                crowding = slowness.crowding(len(found))
                replies = [
                    ServerReply(name, target, _outcomes(slot, watch, target, crowding))
                    for name, slot, target, watch in found
                ]
                self._collected = time.monotonic(), replies
            return self._collected[1]

    def _watched_servers(self) -> list[tuple[str, ServerSlot, Target, WatchedServer | None]]:
        with self._lock:
            return [(name, slot, slot.target, slot.watch) for name, slot in self._slots.items()]

    def _trouble(self) -> Trouble:
        stuck = self._supervisor.hung() + len(self._workers.stuck())
        return Trouble(self._failures, self._supervisor.restarts, stuck)

    def _identity(self) -> dict[str, Any]:
        return {"boot_id": self._boot_id, "pid": os.getpid(), "version": __version__}

    def _remove_ended(self, pids: set[int], now: float) -> None:
        """Stop watching servers that exited or lost their slot; forget servers that exited long ago."""
        for pid, known in list(self._known.items()):
            slot = self._slots[known.name]
            if pid in pids and slot.alive:
                continue
            if slot.alive:  # the process is still running, but must not be watched
                self._release(pid, "server lost its slot")
            else:
                del self._known[pid]
                _log.info("server exited", extra={"server": known.name, "pid": pid})
                slot.ended()
        ended = [(slot.ended_at, name) for name, slot in self._slots.items() if slot.watch is None]
        with self._lock:
            for number, (ended_at, name) in enumerate(sorted(ended, reverse=True)):
                if number >= MAX_ENDED or now - ended_at > REMEMBER_S:
                    del self._slots[name]

    def _release(self, pid: int, reason: str) -> None:
        """Stop watching a running server. A later search may admit it again."""
        name = self._known.pop(pid).name
        _log.warning(reason, extra={"server": name, "pid": pid})
        with self._lock:
            slot = self._slots.pop(name)
        self._workers.submit(Job(ENDING, name, slot.end))

    def _admit(self, pid: int, found: Identified, now: float) -> None:
        """Start watching an identified server if it is new, otherwise update its name and target."""
        known, target = self._known.get(pid), found.target
        if not self._selected.selects(found):
            if known is not None:
                self._release(pid, "its socket reaches another server")
            return
        admitted = self._admission.admit(found, {number: one.name for number, one in self._known.items()})
        if admitted is None:
            return
        name = admitted.name
        losers = {one for one, each in self._known.items() if each.name == name and one != pid}
        targets = [self._slots[one.name].target for one in self._known.values()]
        for other in losers.union(self._selected.displaced(found, targets)):
            self._release(other, "its socket reaches another server")
        if not admitted.inherits and known is None:
            with self._lock:
                self._slots.pop(name, None)  # the slot belonged to another server, which has exited
        retry_s = 2 * known.retry_s if known else _RETRY_S
        retry_at = float("inf") if admitted.final and self._selected.is_final(target) else now + retry_s
        if known is None:
            self._start_watching(name, target)
        elif name != known.name:
            self._rename(known.name, name)
        with self._lock:
            self._slots[name].target = target
        self._known[pid] = _Known(name, retry_s, retry_at)

    def _start_watching(self, name: str, target: Target) -> None:
        slot = self._slots.get(name) or ServerSlot(target, self._counters, self._workers)
        watch = WatchedServer(
            target,
            slot.profiles,
            self._factories,
            workers=self._workers,
            tenant=self._admission.tenant(target.pid),
            budget=self._budget,
            snapshots=slot.snapshots,
            samples=slot.samples,
            interval_s=self._settings.interval_s,
            probes=self._settings.probes,
            method=self._settings.method,
        )
        with self._lock:
            slot.target, slot.watch = target, watch
            self._slots[name] = slot
        extra = {"server": name, "pid": target.pid, "version": target.version_text}
        _log.info("server found", extra=extra | {"socket": target.socket, "port": target.port})

    def _rename(self, old: str, new: str) -> None:
        _log.info("server renamed", extra={"server": new, "before": old})
        with self._lock:
            self._slots[new] = self._slots.pop(old)


def _outcomes(
    slot: ServerSlot, watch: WatchedServer | None, target: Target, crowding: float
) -> tuple[Outcome, ...]:
    """Return the outcomes of a server's collectors. An exception becomes a failure of this server only."""
    try:
        return tuple(slot.outcomes(watch, target, crowding))
    except Exception as error:
        _log.exception("cannot collect from a server", extra={"pid": target.pid})
        return (Outcome("process", False, 0.0, (), ": ".join(explain(error))),)


def _end(slot: ServerSlot, done: threading.Semaphore) -> None:
    slot.end()
    done.release()
