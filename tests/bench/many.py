"""Measure many small servers on one host: ``python -m bench many --many-servers 100``.

All servers are idle. The agent and the sensor observe all of them, with probes attached, and the agent is
scraped every 5 s. The exit status is 1 if the peak memory of a daemon exceeds the ``MemoryMax`` of its unit,
if fewer than one snapshot per second is taken of each server on average, or if some collectors never succeed.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, quantiles
from typing import TYPE_CHECKING, Any

from bench.proc import cpu_seconds, memory_mb
from bench.scene import say
from bench.tables import table
from innoscope.target import allowed_users
from safety.agenting import Running
from safety.sensing import Sensing
from safety.units import Unit
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.settings import Settings
    from servers.launch import Options

Record = dict[str, Any]

#: Options that minimize InnoDB's memory and threads.
_SMALL: Options = {
    "performance_schema": 0,
    "innodb_buffer_pool_size": "8M",
    "innodb_log_file_size": "4M",
    "innodb_use_native_aio": 0,  # fs.aio-max-nr is enough for only a few dozen servers
    "innodb_read_io_threads": 1,
    "innodb_write_io_threads": 1,
    "max_connections": 20,
    "table_open_cache": 64,
}
#: Number of servers that are started at the same time.
_AT_ONCE = 4
#: Maximum seconds until all servers are fully observed.
_PATIENCE_S = 900.0
_TASK = re.compile(r'innoscope_collector_success\{.*?collector="(\w+)".*?\} (\d)')
_WHY = re.compile(r'innoscope_collector_failure_info\{.*?collector="(\w+)".*?reason="(\w+)".*?\} 1')


@dataclass(slots=True)
class Scrapes:
    """Scrapes of all servers: the duration of each, and the failures and successes of each collector."""

    seconds: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)

    def take(self, agent: Running) -> Counter[str]:
        """Scrape once; return the number of failures by collector and reason."""
        began = time.monotonic()
        status, body = agent.get("/metrics")
        self.seconds.append(time.monotonic() - began)
        assert status == 200, body
        text = body.decode()
        self.succeeded += Counter(name for name, good in _TASK.findall(text) if good == "1")
        failed = Counter(": ".join(pair) for pair in _WHY.findall(text))
        self.failed += failed
        return failed


def run(name: str, settings: Settings) -> Record:
    """Start the servers, wait until all are fully observed, and measure."""
    count = settings.many_servers
    with ExitStack() as stack:
        stack.enter_context(watching(count))
        servers = list(started(stack, name, count))
        sensing = stack.enter_context(Sensing(only=servers))
        agent = stack.enter_context(Running(servers[0], sensor=sensing.path, options=configured(servers[1:])))
        settled_s = settle(agent, settings.scrape_every)
        say(f"{name}: a scrape every {settings.scrape_every:g} s for {settings.many_seconds:g} s")
        record = measured(sensing, agent, settings)
        watched = len(record["snapshots_per_second"])
        assert watched == count, f"the sensor watches {watched} of {count} servers"
        return {"servers": count, "settled_s": settled_s, **record}


@contextmanager
def watching(count: int) -> Iterator[None]:
    """Let the sensor watch ``count`` servers. By default, it watches at most 64."""
    with tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "servers.toml"
        path.write_text(f"max_servers = {count}\n")
        path.chmod(0o644)
        os.environ[allowed_users.VARIABLE] = str(path)
        try:
            yield
        finally:
            del os.environ[allowed_users.VARIABLE]


def started(stack: ExitStack, name: str, count: int) -> Iterator[Server]:
    """Start ``count`` small servers, a few at a time, and yield each one."""
    say(f"{name}: starting {count} servers")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for server in pool.map(lambda _: _one(name), range(count)):
            stack.enter_context(_ended(server))
            yield server


def _one(name: str) -> Server:
    server = Server(name, options=_SMALL)
    server.__enter__()
    return server


def _ended(server: Server) -> ExitStack:
    stack = ExitStack()
    stack.push(server.__exit__)
    return stack


def configured(servers: list[Server]) -> list[str]:
    """Return the configuration entries of ``servers``. The agent observes only configured servers."""
    return [
        f"[[server]]\nname = 's{number}'\nsocket = '{server.folder.inside}/s.sock'\n"
        for number, server in enumerate(servers, 2)
    ]


def settle(agent: Running, every_s: float) -> float:
    """Scrape until no collector fails with the reason timeout or gone; return the elapsed seconds.

    Stop after ``_PATIENCE_S`` seconds.
    """
    began = time.monotonic()
    while time.monotonic() - began < _PATIENCE_S:
        failed = Scrapes().take(agent)
        say(f"{time.monotonic() - began:.0f} s: {dict(failed)}")
        if not any(words.endswith(("timeout", "gone")) for words in failed):
            break
        time.sleep(every_s)
    return time.monotonic() - began


def measured(sensing: Sensing, agent: Running, settings: Settings) -> Record:
    """Measure the cost of both daemons, and the number of snapshots per second of each server."""
    pids = {"sensor": sensing.pid, "agent": agent.pid}
    scrapes, tasks, most = Scrapes(), dict.fromkeys(pids, 0), dict.fromkeys(pids, 0.0)
    cpu, began, began_at = {who: cpu_seconds(pid) for who, pid in pids.items()}, time.monotonic(), time.time()
    while (spent := time.monotonic() - began) < settings.many_seconds:
        scrapes.take(agent)
        for who, pid in pids.items():
            tasks[who] = max(tasks[who], len(list(Path(f"/proc/{pid}/task").iterdir())))
            most[who] = max(most[who], memory_mb(pid)["rss"])
        time.sleep(max(0.0, settings.scrape_every - (time.monotonic() - began - spent)))
    spent = time.monotonic() - began
    used = {who: (cpu_seconds(pid) - cpu[who]) / spent for who, pid in pids.items()}
    rates = sorted(snapshots_per_second(sensing, began_at, time.time()))
    return {
        "scrapes": scrapes.seconds,
        "failed": dict(scrapes.failed),
        "succeeded": dict(scrapes.succeeded),
        "tasks": tasks,
        "rss_mb": most,
        "peak_mb": {who: memory_mb(pid)["rss_peak"] for who, pid in pids.items()},
        "cpu": used,
        "snapshots_per_second": rates,
        "log": sensing.log[-4000:],
    }


def snapshots_per_second(sensing: Sensing, begin: float, end: float) -> list[float]:
    """Return the number of snapshots per second for each server."""
    names = sensing.client.hello()["servers"]
    return [
        len(sensing.client.snapshots(name, begin, end, stacks=False)[0]) / (end - begin) for name in names
    ]


def exceeded(results: dict[str, Record]) -> list[str]:
    """Return a message for each limit that is exceeded: memory, snapshots per second, collectors."""
    found = []
    for name, record in results.items():
        rate = mean(record["snapshots_per_second"])
        if round(rate, 2) < 1:
            found.append(f"{name}: {rate:.3f} snapshots per second of each server, at least 1 expected")
        if record["settled_s"] >= _PATIENCE_S:
            found.append(f"{name}: some collectors did not succeed within {_PATIENCE_S:g} s")
        for who, peak_mb in record["peak_mb"].items():
            limit_mb = Unit.named(who).memory_max / 1e6
            if peak_mb > limit_mb:
                found.append(f"{name}: the {who} took {peak_mb:.0f} MB, limit {limit_mb:.0f} MB (MemoryMax)")
    return found


def report(results: dict[str, Record]) -> str:
    """Return a table with one row per process."""
    rows = []
    for name, record in results.items():
        cuts = quantiles(record["scrapes"], n=100, method="inclusive")
        rates = record["snapshots_per_second"]
        rows += [
            (
                name, who, f"{record['servers']}", f"{record['tasks'][who]}",
                f"{record['rss_mb'][who]:.0f}", f"{100 * record['cpu'][who]:.1f} %",
                f"{sum(rates) / len(rates):.2f} ({rates[0]:.2f})" if who == "sensor" else "",
                f"{1000 * cuts[49]:.0f} ({1000 * cuts[98]:.0f})" if who == "agent" else "",
            )
            for who in ("sensor", "agent")
        ]  # fmt: skip
        rows += [
            (name, f"{words}", "", "", "", "", "", f"{count} failures")
            for words, count in sorted(record["failed"].items())
        ]
    return table(
        ("server", "process", "servers", "threads", "memory, MB", "CPU",
         "snapshots/s of a server, mean (least)", "scrape p50 (p99), ms"),
        rows,
    )  # fmt: skip
