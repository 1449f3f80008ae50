"""Sizes and durations. ``--quick`` is for trying the benchmarks, not for figures."""

from __future__ import annotations

from dataclasses import dataclass

#: The two servers of the baseline: with small and with large debug information.
SERVERS = ("mysql-5.6.24", "mariadb-11.4.5")

#: Loads of the benchmarks of probes and diagnose.
PROBE_LOADS = ("oltp", "storm")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run. Times are in seconds."""

    servers: tuple[str, ...] = SERVERS
    connections: int = 1000
    load: int = 4  #: clients that keep the server busy
    rounds: int = 20  #: ours in ``speed``
    other_rounds: int = 3  #: the other tools in ``speed``
    snapshots: int = 5  #: warm ones in each round of ``speed``
    gap_rounds: int = 20
    gap_window: float = 3.0
    pause: float = 0.05  #: between two snapshots in ``gap``
    seconds: float = 600.0  #: of one snapshot a second, in ``overhead``
    pair_rounds: int = 60
    pair_window: float = 2.0
    probe_loads: tuple[str, ...] = PROBE_LOADS
    families: tuple[str, ...] = ()  #: of probes, each by itself instead of those on by default, in ``probes``
    unbounded: bool = False  #: those on by default without a budget, beside them
    spin: bool = False  #: those on by default with the hottest family, beside them, in ``probes``
    oltp_clients: int = 8
    storm_clients: int = 40
    cell: float = 3.0  #: a window of ``probes``
    diagnose_seconds: float = 10.0  #: of each run of ``diagnose``
    diagnose_around: float = 3.0  #: an empty window before and after each
    agent_seconds: float = 120.0  #: for which agent and sensor are measured, in ``agent``
    scrape_every: float = 5.0
    toggle_rounds: int = 8
    toggle_window: float = 3.0
    toggle_load: int = 0  #: clients besides the one that measures, in ``toggle``
    profile_rounds: int = 30
    profile_window: float = 3.0
    fleet_seconds: float = 120.0  #: of the recording, and of each measurement, in ``fleet``
    fleet_profiles: int = 3  #: a minute each
    fleet_agents: int = 1000  #: fake ones; a tenth and three tenths of them before
    many_servers: int = 100
    crowd_connections: int = 19_000  #: idle ones, of one server, in ``crowd``
    many_seconds: float = 60.0
    profile_frequency: int = 999  #: high, so that the cost is measurable


def quick(servers: tuple[str, ...] = SERVERS[:1]) -> Settings:
    """Every step once or twice."""
    return Settings(
        servers=servers,
        connections=200,
        rounds=2,
        other_rounds=1,
        snapshots=2,
        gap_rounds=2,
        gap_window=1.0,
        seconds=10.0,
        pair_rounds=3,
        pair_window=1.0,
        cell=1.0,
        diagnose_seconds=2.0,
        diagnose_around=1.0,
        agent_seconds=20.0,
        toggle_rounds=2,
        profile_rounds=2,
        fleet_seconds=20.0,
        fleet_profiles=1,
        fleet_agents=50,
        many_servers=8,
        crowd_connections=500,
        many_seconds=20.0,
    )
