"""Measure one server with thousands of idle connections: ``python -m bench crowd --crowd-connections 19000``.

The agent and the sensor observe the server, with probes attached, and the agent is scraped every 5 s.
The exit status is 1 as for ``many``. RLIMIT_NOFILE limits the number of connections, because the server
needs a descriptor for each.
"""

from __future__ import annotations

from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from bench.many import measured, settle
from bench.scene import say
from bench.tables import table
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from bench.settings import Settings
    from servers.launch import Options

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Connect, wait until all collectors succeed, and measure."""
    count = settings.crowd_connections
    say(f"{name}: {count:,} connections")
    with (
        Server(name, options=_options(count)) as server,
        Idle(server, count),
        Sensing(only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        settled_s = settle(agent, settings.scrape_every)
        say(f"{name}: a scrape every {settings.scrape_every:g} s for {settings.many_seconds:g} s")
        record = measured(sensing, agent, settings)
        threads = len(list(Path(f"/proc/{server.pid}/task").iterdir()))
        cut = agent.scrape().value("threads_cut")
        return {"threads": threads, "cut": cut, "settled_s": settled_s, **record}


def _options(count: int) -> Options:
    return {
        "max_connections": count + 100,
        "open_files_limit": count + 900,
        "table_open_cache": 64,
        "thread_stack": "192K",
        "performance_schema": 0,
        "innodb_buffer_pool_size": "64M",
    }


def report(results: dict[str, Record]) -> str:
    """Return a table with one row per server."""
    rows = []
    for name, record in results.items():
        cuts = quantiles(record["scrapes"], n=100, method="inclusive")
        (rate,) = record["snapshots_per_second"]
        rows.append((
            name, f"{record['threads']:,}", f"{rate:.2f}", f"{record['cut'] or 0:,.0f}",
            f"{record['rss_mb']['sensor']:.0f}", f"{100 * record['cpu']['sensor']:.1f} %",
            f"{1000 * cuts[49]:.0f} ({1000 * cuts[98]:.0f})",
        ))  # fmt: skip
    return table(
        ("server", "threads", "snapshots/s", "cut", "sensor, MB", "sensor, CPU", "scrape p50 (p99), ms"),
        rows,
    )
