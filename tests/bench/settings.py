"""Define sizes and durations. ``--quick`` only tests the benchmarks; its figures are not meaningful."""

from __future__ import annotations

from dataclasses import dataclass

#: The two servers of the baseline: one with small and one with large debug information.
SERVERS = ("mysql-5.6.24", "mariadb-11.4.5")

#: Loads of the benchmarks ``probes`` and ``diagnose``.
PROBE_LOADS = ("oltp", "storm")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a run. Times are in seconds."""

    servers: tuple[str, ...] = SERVERS
    connections: int = 1000
    load: int = 4  #: clients that keep the server busy
    rounds: int = 20  #: rounds in ``speed`` that run Innoscope
    other_rounds: int = 3  #: rounds in ``speed`` that also run the other tools
    method_rounds: int = 200  #: rounds in ``methods``, each with one snapshot per method
    snapshots: int = 5  #: snapshots by a warm process in each round of ``speed``
    gap_rounds: int = 20
    gap_window: float = 3.0
    pause: float = 0.05  #: between the end of a snapshot and the start of the next, in ``gap``
    seconds: float = 600.0  #: duration of the long run in ``overhead``
    pair_rounds: int = 60
    pair_window: float = 2.0
    probe_loads: tuple[str, ...] = PROBE_LOADS
    families: tuple[str, ...] = ()  #: for ``probes``: measure each of these families alone
    unbounded: bool = False  #: for ``probes``: also measure the default families without a budget
    spin: bool = False  #: for ``probes``: also measure the default families plus the most expensive one
    oltp_clients: int = 8
    storm_clients: int = 40
    cell: float = 3.0  #: duration of a window of ``probes``
    diagnose_seconds: float = 10.0  #: duration of each run of ``diagnose``
    diagnose_around: float = 3.0  #: duration of the window without a command before and after each run
    agent_seconds: float = 120.0  #: duration of the measurement in ``agent``
    scrape_every: float = 5.0
    toggle_rounds: int = 8
    toggle_window: float = 3.0
    toggle_load: int = 0  #: clients in ``toggle``, besides the one that measures
    profile_rounds: int = 30
    profile_window: float = 3.0
    fleet_seconds: float = 120.0  #: duration of the recording and of each measurement in ``fleet``
    fleet_profiles: int = 3  #: number of one-minute profiles
    #: Fake agents in the last measurement of ``fleet``. The two before it use 1/10 and 3/10 of this number.
    fleet_agents: int = 1000
    startup_rounds: int = 10  #: starts of each command in ``startup``
    statement_rounds: int = 60  #: pairs of snapshots in each scene of ``statements``
    many_servers: int = 100
    crowd_connections: int = 19_000  #: idle connections to one server, in ``crowd``
    many_seconds: float = 60.0
    profile_frequency: int = 999  #: Hz; high, so that the cost is measurable


def quick(servers: tuple[str, ...] = SERVERS[:1]) -> Settings:
    """Return settings that run every step only a few times."""
    return Settings(
        servers=servers,
        connections=200,
        rounds=2,
        other_rounds=1,
        snapshots=2,
        method_rounds=5,
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
        startup_rounds=2,
        statement_rounds=5,
        many_servers=8,
        crowd_connections=500,
        many_seconds=20.0,
    )
