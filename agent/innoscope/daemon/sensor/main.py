"""The sensor: finds the servers of this host, watches each, and answers for all of them."""

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
from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import Outcome
from innoscope.common.supervision import Supervisor, Trouble
from innoscope.common.workers import Job, Workers
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.profiles import encode_chunks, encode_looks
from innoscope.daemon.protocol.server_names import Names
from innoscope.daemon.sensor.admission import Admission
from innoscope.daemon.sensor.watch import ATTACHING, ENDING, Slot, Watch
from innoscope.metrics import registry
from innoscope.metrics.collectors.runner import explain
from innoscope.target import discover, ownership
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from innoscope.common.supervision import Beat
    from innoscope.daemon.sensor.watch import Factory, ProbeSettings
    from innoscope.target.model import Target
    from innoscope.target.ownership import Rule

_log = logging.getLogger(__name__)

DISCOVER_S: Final = 2.0
#: A server that ended is reported as down for so long, unless one of its name begins.
REMEMBER_S: Final = 3600.0
#: And no more than so many of them, the last to end: test hosts start thousands.
MOST_ENDED: Final = 16
_END_S: Final = 0.5
#: Chunks of profiles in one reply, of all servers together.
_MOST_CHUNKS: Final = 60
#: The first pause before a server that does not listen is identified again; doubled each time.
_AGAIN_S: Final = 2.0
#: The longest pause before a server that could not be watched is tried again.
_LONGEST_AGAIN_S: Final = 60.0
#: Threads by kind of job where four are not right: a compiler takes 100 MB, and all probes come off at once.
_THREADS: Final = {ATTACHING: 2, ENDING: 16}
#: Compiling and attaching all probes of one server takes seconds, and on a busy host tens of them.
_STUCK_AFTER: Final = {ATTACHING: 120.0}
#: Seconds without a sign of life after which a thread hangs. To identify one server may take seconds.
_HANGS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """``names`` maps a pid or a socket's path, as text, to a server's name; ``only`` are those to watch, none
    for all. No ``probes``, no uprobes. ``rule`` says who may own a server.
    """

    interval_s: float = 1.0
    names: Mapping[str, str] = field(default_factory=dict)
    probes: ProbeSettings | None = None
    only: frozenset[str] = frozenset()
    rule: Rule = field(default_factory=ownership.load)


@dataclass(slots=True)
class _Known:
    """A server process that was identified. ``again_at`` is when to do so again, while it does not listen."""

    name: str
    again_s: float
    again_at: float


@dataclass(slots=True)
class _Failing:
    """A process that could not be watched. ``again_at`` is when to try again, ``words`` is in the log."""

    words: str
    again_s: float
    again_at: float


class Sensor:
    """All watched servers. ``tick`` belongs to one thread, all else may be called by any."""

    def __init__(
        self,
        settings: Settings,
        factories: Sequence[Factory] = (),
        *,
        proc: ProcFs | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._settings = settings
        self._factories = tuple(factories)
        self._proc = proc or ProcFs()
        self._admission = Admission(settings.rule, Names(settings.names, self._proc), self._proc)
        self._counters = frozenset(
            metric.name for metric in registry.default() if metric.kind in ("counter", "histogram")
        )
        self._supervisor = supervisor or Supervisor()
        self._workers = Workers(sizes=_THREADS, stuck_after=_STUCK_AFTER)
        self._failing: dict[int, _Failing] = {}
        self._failures = 0
        self._known: dict[int, _Known] = {}
        self._slots: dict[str, Slot] = {}
        self._lock = threading.Lock()  # of the two above
        self._passed_by: set[int] = set()  # those that ``only`` leaves out
        self._collecting = threading.Lock()
        self._collected: tuple[float, list[tuple[str, Target, list[Outcome]]]] = (-1.0, [])
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def run(self, ended: threading.Event) -> None:
        """Find servers every two seconds until ``ended``, and tell systemd that we live. Raises GaveUp."""
        self._supervisor.start("workers", self._workers.run, _HANGS_S)
        self._supervisor.start("discovery", partial(self._discover, ended), _HANGS_S)
        self._supervisor.watch(ended)

    def _discover(self, ended: threading.Event, beat: Beat) -> None:
        while True:
            beat()
            try:
                self.tick(beat)
            except Exception:  # those that are watched must go on being watched
                _log.exception("no search for servers")
            else:
                self._supervisor.ready()
            if ended.wait(DISCOVER_S):
                return

    def tick(self, beat: Beat = lambda: None) -> None:
        """Begin to watch servers that are new, and end with those that are gone. Skip one that fails."""
        now = time.monotonic()
        resting = {pid for pid, failing in self._failing.items() if now < failing.again_at}
        pids = self._admission.pids(self._known.keys(), self._passed_by, resting)
        self._end_gone(set(pids), now)
        self._passed_by.intersection_update(pids)
        for pid in self._failing.keys() - set(pids):
            del self._failing[pid]
        for pid in pids:
            beat()
            if pid in self._passed_by:
                continue
            known, failing = self._known.get(pid), self._failing.get(pid)
            if (known is None or now >= known.again_at) and (failing is None or now >= failing.again_at):
                try:
                    self._identify(pid, known, now)
                except BaseException as error:  # a panic of the Rust core too: the others are to be watched
                    self._failed(pid, error, now)
                else:
                    self._failing.pop(pid, None)

    def _failed(self, pid: int, error: BaseException, now: float) -> None:
        """Plan when to try again, and log what is new: it ended meanwhile, may not be read, or worse."""
        self._failures += 1
        before = self._failing.get(pid)
        again_s = min(2 * before.again_s, _LONGEST_AGAIN_S) if before else _AGAIN_S
        words = f"{type(error).__name__}: {error}"
        self._failing[pid] = _Failing(words, again_s, now + again_s)
        if before is not None and before.words == words:
            return
        foreseen = isinstance(error, (OSError, InnoscopeError))
        _log.log(
            logging.INFO if foreseen else logging.ERROR,
            "cannot watch a server",
            extra={"pid": pid, "reason": words, "again_in_s": again_s},
            exc_info=None if foreseen else error,
        )

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request of the socket. Raises BadMessage."""
        calls: dict[str, Callable[[], dict[str, Any]]] = {
            "hello": self.hello,
            "collect": self.collect,
            "profiles": lambda: self.profiles(request.get("cursor")),
            "probes": self.probes,
            "looks": lambda: self.looks(request),
        }
        call = calls.get(str(request.get("call")))
        if call is None:
            raise messages.BadMessage(f"there is no call {str(request.get('call'))[:40]!r}")
        return call()

    def hello(self) -> dict[str, Any]:
        """Who we are."""
        with self._lock:
            names = list(self._slots)
        return self._identity() | {"protocol": messages.VERSION, "servers": names}

    def collect(self) -> dict[str, Any]:
        """One run of all collectors of all servers, side by side; who asks meanwhile shares it."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        servers = [
            {
                "name": name,
                "target": messages.encode_target(target),
                "outcomes": messages.encode_outcomes(outcomes),
            }
            for name, target, outcomes in self._run_collectors()
        ]
        return self._identity() | {
            "cpu_seconds": usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime,
            "rss_bytes": _resident(),
            "trouble": asdict(self._trouble()),
            "servers": servers,
            "sent_at": time.time(),
        }

    def profiles(self, cursor: Any) -> dict[str, Any]:
        """Chunks since the cursor, a number for each server (none: from the beginning)."""
        begun = messages.expect(cursor or {}, dict)
        with self._lock:
            slots = list(self._slots.items())
        left = _MOST_CHUNKS
        servers = {}
        for name, slot in slots:
            position, chunks = slot.profiles.since(messages.expect(begun.get(name, 0), int), left)
            left -= len(chunks)
            servers[name] = {
                "target": messages.encode_target(slot.target),
                "cursor": position,
                **encode_chunks(chunks),
            }
        return {"servers": servers}

    def looks(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The looks of a ``server`` from Unix time ``from`` ``to`` another; its ``stacks`` too, if asked.

        Of a server that is not watched there are none.
        """
        name = messages.part(request, "server", str)
        begin, end = messages.part(request, "from", float), messages.part(request, "to", float)
        with self._lock:
            slot = self._slots.get(name)
        if slot is None:
            return encode_looks((), ())
        looks, seen = slot.looks.between(begin, end)
        return encode_looks(looks, seen if request.get("stacks") is True else ())

    def probes(self) -> dict[str, Any]:
        """The status of each server's probes."""
        return {
            "servers": {name: watch.probes() for name, _, _, watch in self._watches() if watch is not None}
        }

    def close(self) -> None:
        """End all watches, side by side, and wait for all threads.

        What takes longer than half a second ends with the process: the kernel detaches what it had attached.
        """
        with self._lock:
            slots = list(self._slots.items())
        done = threading.Semaphore(0)
        for name, slot in slots:
            self._workers.submit(Job(ENDING, name, partial(_end, slot, done), done.release))
        deadline = time.monotonic() + _END_S
        for _ in slots:
            done.acquire(timeout=max(0.0, deadline - time.monotonic()))
        self._workers.close(max(0.0, deadline - time.monotonic()))
        self._supervisor.join_all(max(0.0, deadline - time.monotonic()))

    def _run_collectors(self) -> list[tuple[str, Target, list[Outcome]]]:
        """A run that ended after we were asked is as good as one of our own."""
        asked = time.monotonic()
        with self._collecting:
            if self._collected[0] < asked:
                found = self._watches()
                for _, _, _, watch in found:
                    if watch is not None:
                        watch.start()
                told = [(name, target, _outcomes(slot, watch, target)) for name, slot, target, watch in found]
                self._collected = time.monotonic(), told
            return self._collected[1]

    def _watches(self) -> list[tuple[str, Slot, Target, Watch | None]]:
        with self._lock:
            return [(name, slot, slot.target, slot.watch) for name, slot in self._slots.items()]

    def _trouble(self) -> Trouble:
        stuck = self._supervisor.hung() + len(self._workers.stuck())
        return Trouble(self._failures, self._supervisor.restarts, stuck)

    def _identity(self) -> dict[str, Any]:
        return {"boot_id": self._boot_id, "pid": os.getpid(), "version": __version__}

    def _end_gone(self, pids: set[int], now: float) -> None:
        """End watches whose process is gone, and forget servers that have been down for long."""
        for pid, known in list(self._known.items()):
            slot = self._slots[known.name]
            alive = slot.watch is not None and _alive(slot.watch)
            if pid in pids and alive:
                continue
            del self._known[pid]
            extra = {"server": known.name, "pid": pid}
            if alive:  # it is not down, but nothing more is known of it
                _log.warning("server gave up its place", extra=extra)
                self._workers.submit(Job(ENDING, known.name, slot.end))
                with self._lock:
                    del self._slots[known.name]
            else:
                _log.info("server ended", extra=extra)
                slot.ended()
        ended = [(slot.ended_at, name) for name, slot in self._slots.items() if slot.watch is None]
        with self._lock:
            for number, (ended_at, name) in enumerate(sorted(ended, reverse=True)):
                if number >= MOST_ENDED or now - ended_at > REMEMBER_S:
                    del self._slots[name]

    def _identify(self, pid: int, known: _Known | None, now: float) -> None:
        """Learn who it is; begin to watch it if it is new, else take over what it did not tell before."""
        target = discover.identify(self._proc, pid)
        only = self._settings.only
        if only and only.isdisjoint({str(pid), target.socket}):
            if target.socket is not None:  # else it does not listen yet: ask again
                self._passed_by.add(pid)
            return
        admitted = self._admission.admit(target, {number: one.name for number, one in self._known.items()})
        if admitted is None:
            return
        name = admitted.name
        if not admitted.inherits and known is None:
            with self._lock:
                self._slots.pop(name, None)  # another server's, that has ended
        again_s = 2 * known.again_s if known else _AGAIN_S
        again_at = now + again_s if target.port is None else float("inf")
        if known is None:
            self._begin(name, target)
        elif name != known.name:
            self._rename(known.name, name)
        with self._lock:
            self._slots[name].target = target
        self._known[pid] = _Known(name, again_s, again_at)

    def _begin(self, name: str, target: Target) -> None:
        slot = self._slots.get(name) or Slot(target, self._counters, self._workers)
        settings = self._settings
        watch = Watch(
            target,
            slot.profiles,
            self._factories,
            workers=self._workers,
            looks=slot.looks,
            interval_s=settings.interval_s,
            probes=settings.probes,
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


def _outcomes(slot: Slot, watch: Watch | None, target: Target) -> list[Outcome]:
    """What came of a server's collectors; what goes wrong is its failure and nobody else's."""
    try:
        return slot.outcomes(watch, target)
    except Exception as error:
        _log.exception("no outcomes", extra={"pid": target.pid})
        return [Outcome("process", False, 0.0, (), ": ".join(explain(error)))]


def _alive(watch: Watch) -> bool:
    """Whether its process still is there. Who cannot be asked now may be asked the next time."""
    try:
        return watch.alive
    except OSError:
        return True


def _end(slot: Slot, done: threading.Semaphore) -> None:
    slot.end()
    done.release()


def _resident() -> int:
    """Our own resident memory in bytes (/proc/self/statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
