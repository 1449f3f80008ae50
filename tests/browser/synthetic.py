"""Make a synthetic hour of a server with 1,000 threads from recorded stacks, and serve it from a fake sensor.

Thread counts vary a little. A row lock convoy of 90 seconds begins 20 minutes before the end. The redo log
is full for two minutes, from 10 minutes before the end.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import threading
import time
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from golden import store
from innoscope import __version__
from innoscope.common.samples import Outcome, Sample
from innoscope.common.supervision import Supervisor
from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.messages import ServerReply
from innoscope.daemon.protocol.sample_encoding import encode_samples
from innoscope.daemon.protocol.stack_encoding import encode_chunks, encode_snapshots
from innoscope.daemon.sensor.server import SocketServer
from innoscope.probes.report import ProbeReport
from innoscope.sampling.classify import IDLE
from innoscope.sampling.model import Frame, Trust
from innoscope.sampling.profile_history import CHUNK_S, SPAN_S, Chunk, ClassifiedStack
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues
from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary
from innoscope.target.digests import digest_id
from innoscope.target.model import Target
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

THREADS: Final = 1_000
#: (start, end) of each incident, in seconds before the end of the hour.
CONVOY: Final = (1200.0, 1110.0)
FULL: Final = (600.0, 480.0)
#: Average number of threads in each wait class outside the incidents.
_USUAL: Final = {
    "on_cpu": 14.0, "page_read": 22.0, "fsync_redo": 9.0, "redo_write_wait": 16.0, "row_lock": 6.0,
    "mutex_wait": 5.0, "network_send": 4.0, "page_write": 3.0, "purge": 1.0, "doublewrite": 2.0,
    "background_idle": 17.0,
}  # fmt: skip
_POOL_PAGES: Final = 65_536
_AGE_MAX: Final = 850e6
_GONE: Final = Target(
    0, 0, "mysql", (5, 6, 24), "5.6.24", "memory", "/usr/sbin/mysqld", False, None, None, 3306,
    "/var/lib/mysql", THREADS, "/", None, "symtab",
)  # fmt: skip


def target(name: str, pid: int) -> Target:
    """Return a synthetic server with the pid and start time of the running process ``pid``."""
    started = ProcFs().stat(pid).start_time
    return replace(_GONE, pid=pid, start_time=started, socket=f"/run/{name}.sock")


def threads(before_end: float) -> Counter[str]:
    """Return the number of threads by wait class, ``before_end`` seconds before the end of the hour."""
    found = Counter(
        {
            wait: max(0, round(count * (1 + 0.35 * math.sin(before_end / (37 + 13 * place)))))
            for place, (wait, count) in enumerate(_USUAL.items())
        }
    )
    if CONVOY[1] < before_end <= CONVOY[0]:
        found["row_lock"] += 240
        found["deadlock_search"] += 2
    if FULL[1] < before_end <= FULL[0]:
        found["redo_space"] += 150
        found["flush_wait"] += 25
    found["idle"] = THREADS - found.total()
    return found


def gauges(before_end: float) -> dict[str, float]:
    """Return gauges of the buffer pool and redo log, ``before_end`` seconds before the end of the hour."""
    calm = 0.42 + 0.05 * math.sin(before_end / 300) + 0.01 * math.sin(before_end / 41)
    after = max(0.0, 1 - abs(before_end - (FULL[0] + FULL[1]) / 2) / 500)
    dirty, age = calm + 0.3 * after, min(0.99, 0.35 + 0.06 * math.sin(before_end / 170) + 0.75 * after**1.5)
    return {
        "buffer_pool_dirty_pages": round(dirty * _POOL_PAGES),
        "buffer_pool_dirty_ratio": dirty,
        "buffer_pool_dirty_limit_ratio": 0.75,
        "checkpoint_age_bytes": round(age * _AGE_MAX),
        "checkpoint_age_max_bytes": _AGE_MAX,
        "checkpoint_age_ratio": age,
    }


class _Stacks:
    """The stacks that were recorded on a server, by wait class."""

    def __init__(self, server: str, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._by_wait: dict[str, list[ClassifiedStack]] = {}
        for one in store.read(server):
            frames = tuple(_frame(text) for text in one.frames)
            self._by_wait.setdefault(one.wait, []).append(ClassifiedStack.of(one.wait, Trust.EXACT, frames))

    def of(self, wait: str, count: int) -> Counter[ClassifiedStack]:
        """Distribute ``count`` threads at random over the recorded stacks of a wait class."""
        there = self._by_wait.get(wait) or [
            ClassifiedStack.of(wait, Trust.EXACT, (Frame(wait, "mysqld", 1),))
        ]
        return Counter(self._random.choices(there, [1 / (1 + place) for place in range(len(there))], k=count))


def _frame(text: str) -> Frame:
    module, _, function = text.partition("!")
    return Frame(function or None, module, 4096)


def hour(end: float, *, server: str = "mysql-5.6.24", seed: int = 1) -> Iterator[Chunk]:
    """Yield the chunks of an hour with one snapshot per second, oldest first."""
    stacks = _Stacks(server, seed)
    last = end // CHUNK_S * CHUNK_S
    for step in range(int(SPAN_S / CHUNK_S), 0, -1):
        start = last - step * CHUNK_S
        counts: Counter[ClassifiedStack] = Counter()
        for _ in range(int(CHUNK_S)):
            for wait, count in threads(last - start).items():
                counts += stacks.of(wait, count) if wait != "idle" else Counter()
        idle = stacks.of("idle", 1)
        counts[next(iter(idle))] += threads(last - start)["idle"] * int(CHUNK_S)
        yield Chunk(start + 0.3, start + CHUNK_S - 0.4, int(CHUNK_S), 42.0, counts)


def probes() -> list[dict[str, Any]]:
    """Return reports of three probes: one attached, one sampled and one missing."""
    report = ProbeReport(
        "flush_batch", "flush", "attached", ("buf_flush_batch",), 81_234, 22.5, 0.1, 0.0004, 1
    )
    spin = replace(report, probe="mutex_spin", state="sampled", symbols=("mutex_spin_wait",), duty=0.05)
    spin = replace(spin, hits_per_second=91_000.0, cost_ratio=0.0061)
    redo = ProbeReport("redo_write", "redo", "missing", reason="no function log_write_up_to here")
    redo = replace(redo, remedy="apt-get install mysql-server-core-dbgsym")
    return [asdict(one) for one in (report, spin, redo)]


INSERT_STOCK: Final = "INSERT INTO `stock` VALUES (...) ON DUPLICATE KEY UPDATE `quantity` = ?"
#: The statements that client threads execute, by wait class, each in an equal share of the threads.
STATEMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "row_lock": (INSERT_STOCK,),
    "deadlock_search": (INSERT_STOCK,),
    "page_read": (
        "SELECT `o` . * FROM `orders` `o` JOIN `lines` `l` ON `l` . `order_id` = `o` . `id` "
        "WHERE `o` . `day` BETWEEN ? AND ? ORDER BY `o` . `id` LIMIT ?",
        "SELECT COUNT ( * ) FROM `lines`",
    ),
    "on_cpu": ("SELECT COUNT ( * ) FROM `lines`", "SELECT `name` FROM `customers` WHERE `id` = ?"),
    "network_send": ("SELECT `name` FROM `customers` WHERE `id` = ?",),
}
_OTHER_STATEMENTS: Final = ("INSERT INTO `lines` ( `order_id` , `item` ) VALUES (...)", "COMMIT")
_KINDS: Final = {"purge": "purge", "page_write": "page_cleaner", "doublewrite": "page_cleaner"}
#: Seconds that each synthetic sample represents.
_WEIGHT_S: Final = 5.0


def samples(chunks: Iterable[Chunk], statements: Mapping[str, tuple[str, ...]] = STATEMENTS) -> Batch:
    """Return samples of the busy threads in the chunks. Only client threads execute statements."""
    shapes: dict[SharedValues, int] = {}
    taken = []
    for chunk in chunks:
        counts = {stack: count for stack, count in chunk.counts.items() if stack.wait not in IDLE}
        for part in range(int(CHUNK_S / _WEIGHT_S)):
            numbers: list[int] = []
            for stack, count in counts.items():
                for number in range((round(count * 2 / max(chunk.snapshots, 1)) + part) // 2):
                    shape = _shape(stack, statements.get(stack.wait, _OTHER_STATEMENTS), number)
                    numbers.append(shapes.setdefault(shape, len(shapes)))
            at, ids = chunk.start + part * _WEIGHT_S, range(1, len(numbers) + 1)
            taken.append(Sampled(int(at * 1e6), _WEIGHT_S, [*ids], numbers, [*ids], [None] * len(numbers)))
    texts = {text for several in (*statements.values(), _OTHER_STATEMENTS) for text in several}
    return Batch(list(shapes), taken, {digest_id(text): text for text in texts})


def _shape(stack: ClassifiedStack, texts: tuple[str, ...], number: int) -> SharedValues:
    kind = _KINDS.get(stack.wait, "connection")
    digest = digest_id(texts[number % len(texts)]) if kind == "connection" else None
    return SharedValues(
        kind, "app", "shop", digest, "Query", stack.wait, None, None, "exact", "exact", stack.labels
    )


class FakeSensor:
    """A fake sensor that serves the chunks of the named servers. ``failing`` maps collectors to errors."""

    def __init__(self, path: Path, servers: Mapping[str, Sequence[Chunk]]) -> None:
        self.path = path
        self._processes = [subprocess.Popen(["sleep", "infinity"]) for _ in servers]
        self.targets = {
            name: target(name, process.pid) for name, process in zip(servers, self._processes, strict=True)
        }
        self.statements = STATEMENTS
        self.started = time.time() - 9 * 86_400
        self.failing: dict[str, str] = {}
        now = time.time() // CHUNK_S * CHUNK_S
        ends = max((chunk.end for chunks in servers.values() for chunk in chunks), default=now)
        self.ends = math.ceil(ends / CHUNK_S) * CHUNK_S  # the end of the last chunk's step
        self.convoy = False  # whether the latest snapshots show the convoy
        self.all_sent = threading.Event()  # set once a client has all chunks and requests more
        self.all_samples_sent = threading.Event()
        self._servers = servers

    def __enter__(self) -> FakeSensor:
        self._socket = SocketServer(str(self.path), self._handle, Supervisor())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for process in self._processes:
            process.kill()
            process.wait()

    def close(self) -> None:
        self._socket.close()

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["call"] == "snapshots":
            return self._snapshots(request)
        answers = {"collect": self._collect, "probes": self._probes, "hello": self._identity}
        if request["call"] == "profiles":
            return self._profiles(request.get("cursor") or {})
        if request["call"] == "samples":
            return self._samples(request.get("cursor") or {})
        return answers[request["call"]]()

    def _identity(self) -> dict[str, Any]:
        return {"boot_id": "made", "pid": os.getpid(), "version": __version__, "protocol": messages.VERSION}

    def _probes(self) -> dict[str, Any]:
        return {"servers": {name: probes() for name in self._servers}}

    def _profiles(self, cursor: dict[str, int]) -> dict[str, Any]:
        replies = {}
        for name, chunks in self._servers.items():
            begun = cursor.get(name, 0)
            new = chunks[begun : begun + 60]
            there = messages.encode_target(self.targets[name])
            replies[name] = {"target": there, "cursor": begun + len(new), **encode_chunks(new)}
        if self._has_all(cursor):
            self.all_sent.set()
        return {"servers": replies}

    def _has_all(self, cursor: dict[str, int]) -> bool:
        return all(cursor.get(name, 0) >= len(chunks) for name, chunks in self._servers.items())

    def _samples(self, cursor: dict[str, int]) -> dict[str, Any]:
        replies = {}
        for name, chunks in self._servers.items():
            begun = cursor.get(name, 0)
            new = chunks[begun : begun + 60]
            there = messages.encode_target(self.targets[name])
            body = encode_samples(samples(new, self.statements))
            replies[name] = {"target": there, "cursor": begun + len(new), **body}
        if self._has_all(cursor):
            self.all_samples_sent.set()
        return {"servers": replies}

    def _snapshots(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return one snapshot per second of the requested range.

        All show the start of the convoy if ``convoy`` is set, else the end of the hour.
        """
        before_end = CONVOY[0] if self.convoy else 0.0
        stacks = _Stacks("mysql-5.6.24", 1)
        counts = {
            wait: count for wait, count in threads(before_end).items() if count and wait != "deadlock_search"
        }
        of_clients = {("connection", wait): count for wait, count in counts.items()}
        times = range(math.ceil(request["from"]), math.floor(request["to"]) + 1)
        summaries = [SnapshotSummary(float(at), of_clients) for at in times]
        seen = [
            ObservedStack("connection", stack.wait, stack.labels, count * len(summaries))
            for wait, threads_of in counts.items()
            for stack, count in stacks.of(wait, threads_of).items()
        ]
        return encode_snapshots(summaries, seen if request["stacks"] else ())

    def _collect(self) -> dict[str, Any]:
        return self._identity() | {
            "cpu_seconds": time.process_time(),
            "rss_bytes": 41_000_000,
            "sent_at": time.time(),
            **messages.encode_servers(
                ServerReply(name, there, self._outcomes()) for name, there in self.targets.items()
            ),
        }

    def _outcomes(self) -> tuple[Outcome, ...]:
        attached = [Sample("probe_attached", int(one["duty"] > 0), (one["probe"],)) for one in probes()]
        samples_by_collector = {
            "process": [
                Sample("mysqld_up", 1),
                Sample("mysqld_os_threads", THREADS),
                Sample("mysqld_start_time_seconds", self.started),
            ],
            "memory": [Sample(name, value) for name, value in gauges(0).items()],
            "waits": [Sample("threads", count, (wait, "client")) for wait, count in threads(0).items()],
            "probes": [*attached, Sample("probe_overhead_ratio", 0.0065), Sample("probe_budget_ratio", 0.01)],
        }
        return tuple(
            Outcome(name, name not in self.failing, 0.01, tuple(samples), self.failing.get(name))
            for name, samples in samples_by_collector.items()
        )
