"""Measure the cost of the agent and the sensor with all collectors: ``python -m bench agent``.

The agent and the sensor observe a server with a thousand connections, a hundred of which wait for a row lock.
They use SQL, the server's memory, probes, statements and one snapshot per second. The agent writes the
history and is scraped every 5 s. Both daemons run with the environment variables of their systemd units.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.helper_process import HelperError
from bench.proc import cpu_seconds, memory_mb
from bench.scene import crowded, say
from bench.tables import table
from safety.agenting import Running
from safety.sensing import Sensing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.settings import Settings
    from safety.agenting import Scrape

_UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
_COLLECTORS = ("process", "waits", "memory", "probes", "sql")
_TOGETHER = "both"

#: Seconds between two samples of CPU time and memory.
_STEP_S = 0.5

#: Maximum seconds until all collectors succeed, including the time to compile probes and read debug files.
_PATIENCE_S = 120

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Wait until all collectors of one server succeed, then measure the two processes."""
    with (
        crowded(name, settings.connections, mixed=True) as server,
        Sensing(only=[server], environment=_unit_environment("sensor")) as sensing,
        Running(server, sensor=sensing.path, environment=_unit_environment("agent")) as agent,
    ):
        pids = {"sensor": sensing.pid, "agent": agent.pid}
        scrape = all_work(agent)
        start = {who: cpu_seconds(pid) for who, pid in pids.items()}
        say(f"{name}: a scrape every {settings.scrape_every:g} s for {settings.agent_seconds:g} s")
        readings = _measured(pids, agent, settings)
    return {
        "threads": scrape.value("mysqld_os_threads"),
        "series": len(scrape.values),
        "start_cpu_s": start,
        "readings": readings,
    }


def _unit_environment(daemon: str) -> dict[str, str]:
    """Return the variables that a daemon's unit sets, except those that contain specifiers (``%C``)."""
    unit = (_UNITS / f"innoscope-{daemon}.service").read_text()
    return dict(re.findall(r"^Environment=(\w+)=([^%\n]*)$", unit, re.MULTILINE))


def all_work(agent: Running) -> Scrape:
    """Scrape until every collector has succeeded; return the last scrape. Raise HelperError after 120 s."""
    deadline = time.monotonic() + _PATIENCE_S
    while missing := _missing(scrape := agent.scrape()):
        if time.monotonic() > deadline:
            raise HelperError(f"no {', '.join(missing)} after {_PATIENCE_S} s:\n{agent.log}")
        time.sleep(_STEP_S)
    return scrape


def _missing(scrape: Scrape) -> list[str]:
    """Return the collectors that have not succeeded yet."""
    return [name for name in _COLLECTORS if scrape.value("collector_success", collector=name) != 1]


def _measured(pids: Mapping[str, int], agent: Running, settings: Settings) -> list[Record]:
    began = time.monotonic()
    readings, scrape_at = [_reading(pids, 0.0)], began
    while (elapsed := time.monotonic() - began) < settings.agent_seconds:
        if time.monotonic() >= scrape_at:
            agent.scrape()
            scrape_at += settings.scrape_every
        time.sleep(min(_STEP_S, settings.agent_seconds - elapsed))
        readings.append(_reading(pids, time.monotonic() - began))
    return readings


def _reading(pids: Mapping[str, int], at: float) -> Record:
    return {"at_s": at, **{who: {"cpu_s": cpu_seconds(pid), **memory_mb(pid)} for who, pid in pids.items()}}


def report(results: dict[str, Any]) -> str:
    """Return a table with one row for each process and one for both together."""
    return table(_HEADER, [row for name, result in results.items() for row in _rows(name, result)])


_HEADER = ("server", "process", "threads", "series", "seconds", "start-up CPU s", "CPU of one core",
           "RSS MB, median", "most in that time", "anonymous MB", "mapped files MB", "PSS MB",
           "peak RSS MB since its start")  # fmt: skip


def _rows(name: str, result: Record) -> list[list[str]]:
    readings = result["readings"]
    by_process = {who: [reading[who] for reading in readings] for who in ("sensor", "agent")}
    by_process[_TOGETHER] = [
        {key: one[key] + other[key] for key in one} for one, other in zip(*by_process.values(), strict=True)
    ]
    seconds = readings[-1]["at_s"] - readings[0]["at_s"]
    start = result["start_cpu_s"] | {_TOGETHER: sum(result["start_cpu_s"].values())}
    about = [f"{result['threads']:,.0f}", f"{result['series']:,}", f"{seconds:.0f}"]
    return [[name, who, *about, f"{start[who]:.1f}", *_row(own, seconds)] for who, own in by_process.items()]


def _row(own: list[dict[str, float]], seconds: float) -> list[str]:
    return [
        f"{(own[-1]['cpu_s'] - own[0]['cpu_s']) / seconds:.2%}",
        f"{median(each['rss'] for each in own):.1f}", f"{max(each['rss'] for each in own):.1f}",
        f"{median(each['anon'] for each in own):.1f}", f"{median(each['file'] for each in own):.1f}",
        f"{median(each['pss'] for each in own):.1f}", f"{own[-1]['rss_peak']:.1f}",
    ]  # fmt: skip
