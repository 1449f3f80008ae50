"""Test that the history's shares match performance_schema where it is accurate, and the scheduler elsewhere.

A mix of four kinds of statements runs for ten minutes. The history's shares by statement are compared with
events_statements_summary_by_digest. Its shares by wait class are compared with an off-CPU profile, whose
times come from the scheduler, and with a sampler of events_waits_current.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from live.history_mix import COMMITS, TEXTS, Mix
from safety.agenting import Running
from safety.command import INNOSCOPE, innoscope
from safety.sensing import Sensing
from scale import long
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

pytestmark = [
    long("tests/live/test_session_history.py compares the seconds of a lock convoy"),
    pytest.mark.timeout(900),
]
MIX_S = 600
#: Maximum difference between the history's share and the other source's.
POINTS = 0.03
LATCHES = "mutex or rwlock"
#: The activity that a wait event indicates, keyed by the beginning of the event's name.
EVENTS = {
    "wait/io/table/": "row lock",  # the handler call in which the thread waits
    "wait/lock/metadata/": "metadata lock",
    "wait/synch/cond/sql/MDL_context::": "metadata lock",
    "wait/io/file/innodb/innodb_log_file": "commit",
    "wait/io/file/sql/binlog": "commit",
    "wait/synch/cond/sql/MYSQL_BIN_LOG::": "commit",
    "wait/synch/": LATCHES,
    "wait/io/socket/": "network",
}
CLASSES = {
    "row_lock": "row lock",
    "metadata_lock": "metadata lock",
    "redo_write_wait": "commit",
    "fsync_redo": "commit",
    "fsync_binlog": "commit",
    "group_commit": "commit",
    "on_cpu": "CPU",
    "runnable": "CPU",  # on_cpu includes threads that are ready to run
    "mutex_wait": LATCHES,
    "spin": LATCHES,
}
_CURRENT = """
SELECT t.THREAD_ID, w.EVENT_NAME, w.END_EVENT_ID IS NULL
FROM performance_schema.threads t LEFT JOIN performance_schema.events_waits_current w USING (THREAD_ID)
WHERE t.TYPE = 'FOREGROUND' AND t.PROCESSLIST_COMMAND = 'Query' AND t.PROCESSLIST_ID <> CONNECTION_ID()
ORDER BY t.THREAD_ID, w.EVENT_ID
"""
_SUMMARY = """
SELECT DIGEST_TEXT, SUM(SUM_TIMER_WAIT) / 1e12
FROM performance_schema.events_statements_summary_by_digest GROUP BY DIGEST_TEXT
"""


class WaitSampler(threading.Thread):
    """A sampler that reads events_waits_current once per second, like tools that have no other source.

    ``as_shown`` counts the latest wait of each active thread; ``unfinished`` only waits that have not ended.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        server.sql(
            "UPDATE performance_schema.setup_consumers SET ENABLED = 'YES' WHERE NAME LIKE 'events_waits_c%'",
            "UPDATE performance_schema.setup_instruments SET ENABLED = 'YES', TIMED = 'YES'"
            " WHERE NAME LIKE 'wait/%'",
        )
        self._connection = server.connect()
        self._ended = threading.Event()
        self.as_shown: Counter[str] = Counter()
        self.unfinished: Counter[str] = Counter()
        #: The names of finished waits that were shown as current.
        self.finished: Counter[str] = Counter()

    def run(self) -> None:
        with contextlib.closing(self._connection) as connection, connection.cursor() as cursor:
            while not self._ended.wait(1):
                cursor.execute(_CURRENT)
                rows = {thread: (name, bool(current)) for thread, name, current in cursor.fetchall()}
                for name, current in rows.values():
                    self.as_shown[_activity(name)] += 1
                    self.unfinished[_activity(name) if current else "CPU"] += 1
                    self.finished[name] += name is not None and not current

    def stop(self) -> None:
        self._ended.set()
        self.join()


def _activity(event: str | None) -> str:
    if event is None:
        return "CPU"
    return next((activity for start, activity in EVENTS.items() if event.startswith(start)), "other")


@dataclass(frozen=True)
class Observed:
    """What each source measured while the mix of statements ran."""

    by_digest: dict[str | None, float]
    by_wait: dict[str, float]
    summary: dict[str, float]
    clients: Mapping[str, float]
    sampler: WaitSampler
    profile: dict[str, Any]
    cores: float


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    path = tmp_path_factory.mktemp("truth") / "profile.json"
    with (
        Server("mysql-8.0.31", options=COMMITS) as server,
        Sensing("--no-probes", only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        agent.until(lambda scrape: scrape.value("statements_up") == 1, patience=60)
        sampler = WaitSampler(server)
        server.sql("TRUNCATE performance_schema.events_statements_summary_by_digest")
        begun, used = time.time(), _cpu_seconds(server.pid)
        sampler.start()
        with Mix(server) as mix, _profile(server, path):
            time.sleep(MIX_S)
        cores = (_cpu_seconds(server.pid) - used) / (time.time() - begun)
        sampler.stop()
        summary = {text: float(seconds) for text, seconds in server.sql(_SUMMARY)}
        agent.until_recorded()
        agent.terminate()
        yield Observed(
            _seconds(agent.history, "digest", "text"),
            _seconds(agent.history, "wait", "wait"),
            summary,
            mix.seconds,
            sampler,
            json.loads(path.read_text()),
            cores,
        )


@contextlib.contextmanager
def _profile(server: Server, path: Path) -> Iterator[None]:
    """Profile the server while the block runs."""
    command = [INNOSCOPE, "profile", "--off-cpu", "--pid", str(server.pid), "--seconds", str(MIX_S - 5)]
    with subprocess.Popen([*command, "--json", "--output", str(path)], stderr=subprocess.PIPE) as process:
        try:
            yield
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, errors


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time that all threads of a process have used."""
    done = subprocess.run(
        ["ps", "-o", "cputimes=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _seconds(history: Path, by: str, key: str) -> dict[Any, float]:
    done = innoscope("history", "15m", "--by", by, "--dir", history, "--json")
    assert done.returncode == 0, done.stderr
    return {group.get(key): group["seconds"] for group in json.loads(done.stdout)["groups"]}


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    total = sum(seconds.values())
    return {name: value / total for name, value in seconds.items()}


def _named(shares: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of the mix's statements by name. Omit statements that hold locks, and the agent's."""
    return {name: shares.get(text, 0) for name, text in TEXTS.items()}


def _table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title:20}" + "".join(f"{name:>20}" for name in columns))
    names = dict.fromkeys(name for shares in columns.values() for name in shares)
    for name in names:
        print(f"{name:20}" + "".join(f"{shares.get(name, 0):20.1%}" for shares in columns.values()))


def test_shares_by_digest_are_those_of_performance_schema(observed: Observed) -> None:
    """Compare the samples that have a statement.

    Samples without a statement come from threads that were ready to run but had not begun a new command.
    """
    known = {text: seconds for text, seconds in observed.by_digest.items() if text is not None}
    history, server = _named(_shares(known)), _named(_shares(observed.summary))
    _table("statement", {"history": history, "by_digest": server, "clients": _shares(observed.clients)})
    total, unknown = sum(known.values()), observed.by_digest.get(None, 0)
    print(f"with a statement: {total:.1f} s (by_digest: {sum(observed.summary.values()):.1f} s)")
    print(f"without: {unknown:.1f} s; the server used {observed.cores:.2f} cores")
    for name in TEXTS:
        assert history[name] == pytest.approx(server[name], abs=POINTS), name


def test_finished_waits_are_not_reported_as_current(observed: Observed) -> None:
    """Reproduce github.com/TPC-Council/HammerDB/issues/905."""
    history: dict[str, float] = defaultdict(float)
    for wait, seconds in observed.by_wait.items():
        history[CLASSES.get(wait, "other")] += seconds
    shares = {
        "events_waits_current": _shares(observed.sampler.as_shown),
        "END_EVENT_ID IS NULL": _shares(observed.sampler.unfinished),
        "history": _shares(history),
        "scheduler": _shares(_by_scheduler(observed.profile)),
    }
    _table("activity", shares)
    print(f"shown, but finished: {observed.sampler.finished.most_common(5)}")
    truth = shares["scheduler"]
    assert truth.get(LATCHES, 0) < 0.01
    assert shares["events_waits_current"][LATCHES] > truth.get(LATCHES, 0) + 2 * POINTS
    assert shares["END_EVENT_ID IS NULL"].get("commit", 0) < truth["commit"] - POINTS
    for name in {*truth, *shares["history"]}:
        assert shares["history"].get(name, 0) == pytest.approx(truth.get(name, 0), abs=POINTS), name


def _by_scheduler(profile: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of client threads by activity, without idle time."""
    clients = {tid for stack in profile["stacks"] if stack["wait"] == "idle" for tid in stack["threads"]}
    seconds = defaultdict(float)
    seconds["CPU"] = sum(
        thread["running_ns"] / 1e9 for thread in profile["threads"] if thread["tid"] in clients
    )
    for stack in profile["stacks"]:
        if clients & set(stack["threads"]) and stack["wait"] != "idle":
            seconds[CLASSES.get(stack["wait"], "other")] += stack["count"] / 1e6
    return seconds
