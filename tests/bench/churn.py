"""Connect and disconnect for hours; measure the memory, descriptors and map entries of both daemons.

Run ``unshare --pid --fork --mount-proc python -m bench.churn --minutes 121`` with ``tests`` as the working
directory, so that other servers on the host do not occupy the sensor. At the end of the run, the benchmark
prints as JSON the values after ``--settle`` minutes and the final values. It exits with status 1 if a value
that must not grow has grown by more than 5 % in between, or if there were fewer than 200 connections per
second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Final

from safety.agenting import Running
from safety.sensing import Sensing, of_pid
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.protocol.messages import ServerReply

_EVERY_S: Final = 15.0
_GROWTH: Final = 1.05
#: Minimum number of connections per second.
_LEAST_RATE: Final = 200.0
_MAP_METRICS: Final = frozenset({"probe_map_entries", "probe_map_dropped"})


def main() -> int:
    """Run the benchmark and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="mysql-5.6.24")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=300.0, help="connections per second, of all clients")
    options = parser.parse_args()
    with (
        Server(options.server, options={"thread_cache_size": 0}) as server,  # each connection starts a thread
        Sensing(only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        began = time.monotonic()
        settled: dict[str, float] | None = None
        with _churning(server, options.clients, options.rate, 60 * options.minutes + 60):
            passed = 0.0
            while passed < 60 * options.minutes:
                time.sleep(_EVERY_S)
                passed = time.monotonic() - began
                try:
                    now = _measure(sensing, agent, server)
                except TimeoutError:  # the host is briefly overloaded; try again
                    continue
                now |= {"connections": _connections(server), "seconds": passed}
                print(json.dumps(now), file=sys.stderr, flush=True)
                if settled is None and passed >= 60 * options.settle:
                    settled = now
    if settled is None or settled is now:
        parser.error("--settle must be well below --minutes")
    rate = (now["connections"] - settled["connections"]) / (now["seconds"] - settled["seconds"])
    grown = [name for name in _compared(settled) if now[name] > _GROWTH * settled[name]]
    print(
        json.dumps({"connections_per_second": rate, "settled": settled, "end": now, "grown": grown}, indent=1)
    )
    return 1 if grown or rate < _LEAST_RATE else 0


def _compared(state: dict[str, float]) -> list[str]:
    """Return the names of the values that must not grow.

    Thread counts may grow, because shared workers are started when first needed.
    """
    return sorted(name for name in state if not name.endswith(("connections", "seconds", "threads")))


@contextmanager
def _churning(server: Server, clients: int, rate: float, seconds: float) -> Iterator[None]:
    arguments = [str(server.socket), str(clients), str(rate), str(seconds)]
    with subprocess.Popen(
        [sys.executable, "-m", "safety.churn_main", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    ) as process:
        yield
        assert process.stdin is not None
        process.stdin.close()


def _connections(server: Server) -> float:
    """Return the number of connections since the server started."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
        return float(cursor.fetchone()[1])


def _measure(sensing: Sensing, agent: Running, server: Server) -> dict[str, float]:
    status, _ = agent.get("/metrics")  # scrape() would fail while the host is briefly overloaded
    assert status == HTTPStatus.OK
    reply = of_pid(sensing.client.collect(), server.pid)
    assert reply is not None
    return _usage("sensor", sensing.pid) | _usage("agent", agent.pid) | _maps(reply)


def _usage(who: str, pid: int) -> dict[str, float]:
    process = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return {
        f"{who}_rss_kb": float(status["VmRSS"].split()[0]),
        f"{who}_descriptors": float(len(list((process / "fd").iterdir()))),
        f"{who}_threads": float(status["Threads"]),
    }


def _maps(reply: ServerReply) -> dict[str, float]:
    return {
        f"{sample.metric}_{sample.labels[0]}": float(sample.value)
        for outcome in reply.outcomes
        for sample in outcome.samples
        if sample.metric in _MAP_METRICS and isinstance(sample.value, float | int)
    }


if __name__ == "__main__":
    sys.exit(main())
