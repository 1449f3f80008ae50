"""Measure the load that a fleet puts on Prometheus and on the profile store: ``python -m bench fleet``.

One agent is real: its replies are recorded, its profiles are pushed, and Prometheus stores its series. Then
many fake agents serve that recording to a real Prometheus, which scrapes them every 15 s. Larger fleets are
extrapolated.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.agent import all_work
from bench.helper_process import Helper, HelperError
from bench.measured_prometheus import Measured
from bench.proc import cpu_seconds
from bench.scene import busy, crowded, say
from bench.tables import table
from receiver import Receiver
from safety.agenting import Running
from safety.sensing import Sensing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.settings import Settings

#: The scrape interval of the example configurations for service discovery.
INTERVAL_S = 15
_FLEET = 10_000
#: Maximum seconds until all fake agents have been scraped.
_PATIENCE_S = 300.0
_STEP_S = 1.0
#: Minimum duration of a profile in seconds. Shorter profiles, such as an agent's first one, are ignored.
_WHOLE_S = 25

Record = dict[str, Any]


def run(name: str, settings: Settings) -> Record:
    """Measure one real agent, then growing numbers of fake ones."""
    with tempfile.TemporaryDirectory(prefix="innoscope-fleet-") as scratch:
        folder = Path(scratch)
        one, bodies = _one(name, settings, folder)
        (folder / "bodies.json").write_text(json.dumps(bodies))
        most = settings.fleet_agents
        farms = [_farm(number, folder, settings) for number in (most // 10, 3 * most // 10, most)]
    return {"one": one, "farms": farms}


def _one(name: str, settings: Settings, folder: Path) -> tuple[Record, list[str]]:
    """Measure the replies and profiles of one agent; return the measurements and the replies."""
    with (
        crowded(name, settings.connections, mixed=True) as server,
        busy(server, settings.load),
        Receiver() as store,
        Sensing(only=[server]) as sensing,
        Running(server, sensor=sensing.path, options=[f"[push]\nurl = '{store.url}'"]) as agent,
    ):
        all_work(agent)
        home = folder / "one"
        home.mkdir()
        with Measured(home, agent.port, interval_s=1) as prometheus:
            say(f"{name}: one agent, scraped and recorded every second for {settings.fleet_seconds:g} s")
            before, began = cpu_seconds(agent.pid), time.monotonic()
            bodies = list(_recorded(agent, settings.fleet_seconds))
            cpu = (cpu_seconds(agent.pid) - before) / (time.monotonic() - began)
            reading, disk = prometheus.reading(), prometheus.on_disk()
        say(f"{name}: until {settings.fleet_profiles} profiles of a minute were pushed")
        store.until(lambda: len(store.received) >= settings.fleet_profiles, patience_s=_PATIENCE_S)
        profiles = [[got.size, got.profile.duration_nanos / 1e9, got.profile.total] for got in store.received]
    return {
        "series": reading["series"], "samples": reading["samples"], "disk": disk, "agent_cpu": cpu,
        "body_bytes": len(bodies[-1]), "profiles": profiles,
    }, bodies  # fmt: skip


def _recorded(agent: Running, seconds: float) -> Iterator[str]:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        yield agent.scrape().text
        time.sleep(min(_STEP_S, left))


def _farm(number: int, folder: Path, settings: Settings) -> Record:
    """Start Prometheus with ``number`` fake agents; measure once all of them have been scraped."""
    home = folder / str(number)
    home.mkdir()
    with Helper("fake_agents", str(folder / "bodies.json")) as helper:
        port = helper.command("port")
        targets = home / "targets.json"
        targets.write_text(json.dumps([_target(place, port) for place in range(1, number)]))
        files = f"file_sd_configs: [{{files: ['{targets}']}}]"
        with Measured(home, port, files, interval_s=INTERVAL_S) as prometheus:
            _until_all_up(prometheus, number)
            say(f"{number:,} fake agents, for {settings.fleet_seconds:g} s")
            before, farm, began = prometheus.reading(), cpu_seconds(helper.pid), time.monotonic()
            time.sleep(settings.fleet_seconds)
            after, seconds = prometheus.reading(), time.monotonic() - began
            return {
                "targets": number, "seconds": seconds, "before": before, "after": after,
                "farm_cpu": (cpu_seconds(helper.pid) - farm) / seconds, "up": prometheus.up(),
            }  # fmt: skip


def _target(place: int, port: int) -> Record:
    """Return a scrape target. All targets share one port and differ in path and instance."""
    labels = {"__metrics_path__": f"/{place}/metrics", "instance": f"db{place:05}.example.net:9977"}
    return {"targets": [f"127.0.0.1:{port}"], "labels": labels}


def _until_all_up(prometheus: Measured, number: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while (up := prometheus.up()) < number:
        if time.monotonic() > deadline:
            raise HelperError(f"only {up} of {number} fake agents were scraped in {_PATIENCE_S:g} s")
        time.sleep(_STEP_S)


def report(results: dict[str, Any]) -> str:
    """Return three tables per server: one agent, many agents, and the extrapolation to 10,000 agents."""
    return "\n\n".join(
        text
        for name, result in results.items()
        for text in (
            table(_ONE, [_one_row(name, result["one"])]),
            table(_MANY, [_many_row(name, farm) for farm in result["farms"]]),
            table(_EXTRAPOLATED, list(_extrapolated(name, result))),
        )
    )


_ONE = (
    "server", "what", "series", "bytes a scrape", "agent's CPU, a scrape a second", "bytes a sample on disk",
    "index, bytes a series", "WAL, bytes a sample", "profile of a minute, bytes", "bytes an hour pushed",
)  # fmt: skip


def _one_row(name: str, one: Record) -> list[str]:
    disk, samples, pushed = one["disk"], one["samples"], _profile_bytes(one)
    return [
        name, "one agent, measured", f"{one['series']:,.0f}", f"{one['body_bytes']:,}",
        f"{one['agent_cpu']:.2%}", f"{disk['chunks'] / samples:.2f}", f"{disk['index'] / one['series']:.0f}",
        f"{disk['wal'] / samples:.1f}", f"{pushed:,.0f}", f"{60 * pushed:,.0f}",
    ]  # fmt: skip


def _profile_bytes(one: Record) -> float:
    """Return the mean size of a one-minute profile."""
    whole = [size * 60 / seconds for size, seconds, _ in one["profiles"] if seconds > _WHOLE_S]
    return float(sum(whole) / len(whole))


_MANY = (
    "server", "what", "agents", "series", "samples/s", "CPU of one core", "CPU µs a sample", "RSS MB",
    "RSS bytes a series",
)  # fmt: skip


def _many_row(name: str, farm: Record) -> list[str]:
    rate, cpu, after = _rate(farm, "samples"), _rate(farm, "cpu_s"), farm["after"]
    return [
        name, "Prometheus, measured", f"{farm['up']:,}", f"{after['series']:,.0f}", f"{rate:,.0f}",
        f"{cpu:.1%}", f"{1e6 * cpu / rate:.1f}", f"{after['rss']:,.0f}",
        f"{1e6 * after['rss'] / after['series']:,.0f}",
    ]  # fmt: skip


def _rate(farm: Record, what: str) -> float:
    return float(farm["after"][what] - farm["before"][what]) / float(farm["seconds"])


_EXTRAPOLATED = (
    "server", "what", "a scrape every", "series", "samples/s", "cores", "RSS GB", "disk GB a day",
    "network MB/s", "profiles MB/s", "profiles GB a day",
)  # fmt: skip


def _extrapolated(name: str, result: Record) -> Iterator[list[str]]:
    """Yield table rows that extrapolate to 10,000 agents, for scrape intervals of 15, 30 and 60 s."""
    one, farm = result["one"], result["farms"][-1]
    series = _FLEET * farm["after"]["series"] / farm["targets"]
    cpu = _rate(farm, "cpu_s") / _rate(farm, "samples")
    memory_gb = series * farm["after"]["rss"] / farm["after"]["series"] / 1e3
    pushed = _profile_bytes(one) * _FLEET / 60
    for interval in (15, 30, 60):
        rate = series / interval
        disk = rate * 86_400 * one["disk"]["chunks"] / one["samples"]
        yield [
            name, f"{_FLEET:,} agents, extrapolated", f"{interval} s", f"{series:,.0f}", f"{rate:,.0f}",
            f"{rate * cpu:.1f}", f"{memory_gb:.1f}", f"{disk / 1e9:.0f}",
            f"{one['body_bytes'] * _FLEET / interval / 1e6:.0f}", f"{pushed / 1e6:.2f}",
            f"{pushed * 86_400 / 1e9:.0f}",
        ]  # fmt: skip
