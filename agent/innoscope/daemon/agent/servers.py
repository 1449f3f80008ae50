"""The servers that the agent observes: reported by the sensor, configured, or discovered."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.common import slowness
from innoscope.common.samples import Outcome
from innoscope.common.workers import Workers
from innoscope.daemon.protocol.configured_servers import ConfiguredServers, ServerAddress
from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.metrics.collectors import sql_catalog, state_catalog
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.state import Heartbeat, StateCollector
from innoscope.target import choice, sql
from innoscope.target.discover import still_same
from innoscope.target.proc import ProcFs
from innoscope.target.unanswered import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.agent.config import Server as ConfiguredServer
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

#: How long an exited server is still reported, in seconds, with mysqld_up 0.
_REMEMBER_S: Final = 3600.0
#: How long a process that only the agent itself has found is reported after the sensor has answered, in
#: seconds. A sensor that has just started may still be identifying it.
_UNREPORTED_S: Final = 30.0
#: Maximum number of exited servers to report, higher than the sensor's limit.
_MAX_ENDED: Final = 64
#: Number of threads for each kind of SQL query; all slow servers together get at most half of them. A server
#: that does not respond occupies one of them for ``sql.timeout_seconds``.
_SQL_THREADS: Final = 64
_LOCAL_HOSTS: Final = ("127.0.0.1", "::1", "localhost")
#: Maximum number of a server's connections for captures on which a timed-out request may still be running. A
#: capture opens two connections, one after the other.
_MAX_UNANSWERED_CAPTURES: Final = 2


class SqlChannel:
    """SQL access to one server: its two collectors, each with its own connection, and their runner.

    ``connect`` opens another connection; its argument is a timeout in seconds. ``unanswered`` contains the
    connections on which a timed-out request may still be running.
    """

    def __init__(
        self,
        collector: SqlCollector,
        state: StateCollector,
        connect: Callable[[float], Connection],
        workers: Workers,
        name: str,
        unanswered: Iterable[Unanswered] = (),
    ) -> None:
        self.connect = connect
        self._unanswered = tuple(unanswered)
        self._collector, self._state = collector, state
        self._runner = Runner([collector, state], workers, name)

    def start(self, timeout: float) -> None:
        """Start the queries, with a timeout in seconds."""
        self._collector.timeout = self._state.timeout = timeout
        self._runner.start()

    def outcomes(self) -> tuple[Outcome, Outcome]:
        """Return the collectors' results: metrics and state.

        If the account lacks privileges, a result is marked as failed, but still contains samples.
        """
        metrics, state = self._runner.outcomes()
        return (
            _with_shortfall(metrics, self._collector.shortfall),
            _with_shortfall(state, self._state.shortfall),
        )

    def close(self) -> None:
        """Close the connections. A running query ends at its timeout."""
        self._runner.close()
        for one in self._unanswered:
            one.close()


def _with_shortfall(outcome: Outcome, shortfall: str | None) -> Outcome:
    if outcome.success and shortfall is not None:
        return Outcome(outcome.collector, False, outcome.seconds, outcome.samples, shortfall)
    return outcome


@dataclass(slots=True)
class ObservedServer:
    """An observed server. ``name`` is its ``server`` label.

    ``target`` is None if the server is on another host, or if it is ``expected`` on this host (configured in
    agent.toml) and has not been seen since the agent started. ``reported`` is false as long as only the agent
    itself has found the process.
    """

    name: str
    target: Target | None
    channel: SqlChannel | None
    seen_at: float
    expected: bool = False
    reported: bool = True
    outcomes: tuple[Outcome, ...] = ()  # from the sensor, in the current scrape
    collectors: tuple[str, ...] = ()  # names of the collectors in the sensor's last reply

    @property
    def life(self) -> Hashable:
        """Return the identity of the server's process: pid and start time."""
        return (self.target.pid, self.target.start_time) if self.target else None

    @property
    def up(self) -> bool | None:
        """Return whether the server's process is running; None if the server is on another host."""
        if self.target is not None:
            return still_same(self.target)
        return False if self.expected else None


class Servers:
    """All observed servers, by name."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        names = (SqlCollector.name, StateCollector.name)
        self.workers = Workers(sizes=dict.fromkeys(names, _SQL_THREADS))
        self._clock = clock
        self._names = ServerNames({}, ProcFs())
        self._entries = {entry.name: entry for entry in config.server}
        self._configured = ConfiguredServers(map(_address, config.server), ProcFs(), clock)
        self._known: dict[str, ObservedServer] = {}
        self._own_names: dict[str, str] = {}
        for named in config.server:
            local = _is_local(named)
            channel = None if local else self._make_channel(None, named)
            # An entry with a socket is on this host even if its address is not: the server may run in a
            # container.
            expected = local or named.socket is not None
            self._known[named.name] = ObservedServer(named.name, None, channel, clock(), expected=expected)

    def __iter__(self) -> Iterator[ObservedServer]:
        return iter(list(self._known.values()))

    def register_from_sensor(
        self, name: str, target: Target, *, reported: bool = True
    ) -> ObservedServer | None:
        """Register a server that the sensor reported. Return None if ``only_named`` excludes the server.

        If the process, its socket or its port has changed, the connections are replaced.
        """
        own_name = self.own_name(name, target)
        if own_name is None:
            return None
        # Keep only the latest name: before the sensor replied, the agent may have given the server another
        # one.
        self._own_names = {theirs: own for theirs, own in self._own_names.items() if own != own_name}
        self._own_names[name] = own_name
        named, name = self._entry_of(name, target), own_name
        self._drop_others(name, target)
        server = self._known.get(name)
        if server is None or server.target != target:
            channel = server.channel if server is not None else None
            if channel is not None and server is not None and not _same_endpoint(server.target, target):
                channel.close()
                channel = None
            channel = channel or self._make_channel(target, named)
            server = ObservedServer(name, target, channel, self._clock(), expected=name in self._entries)
            self._known[name] = server
        server.seen_at = self._clock()
        server.reported = reported
        return server

    def _drop_others(self, name: str, target: Target) -> None:
        """Remove this process's entries under other names, which it had before the sensor reported it."""
        for server in self:
            if server.name != name and server.target is not None and same(server.target, target):
                self.close(server)
                del self._known[server.name]

    def register(self, targets: Iterable[Target]) -> None:
        """Register servers that the agent discovered itself while the sensor is unavailable."""
        for target in targets:
            known = next((server for server in self if server.target and same(server.target, target)), None)
            alive = {server.name for server in self if server.up}
            if known is None:
                self.register_from_sensor(self._names.give(target, alive), target, reported=False)
            else:
                self.register_from_sensor(known.name, target, reported=known.reported)

    def forget_unreported(self) -> None:
        """Remove processes that the sensor has not reported, although it has been answering for a while.

        The sensor refuses them: for example, a second process uses a server's data directory.
        """
        for server in self:
            is_old = self._clock() - server.seen_at > _UNREPORTED_S
            if server.target is not None and not server.reported and not server.expected and is_old:
                self.close(server)
                del self._known[server.name]

    def own_name(self, name: str, target: Target) -> str | None:
        """Return the configured name, else the sensor's name; None if ``only_named`` excludes the server.

        A server that does not listen yet, for example during crash recovery, keeps its configured name. If
        the sensor's name is the configured name of another server, a suffix is appended.
        """
        named = self._entry_of(name, target)
        if named is not None:
            return named.name
        earlier = self._own_names.get(name, "")
        if earlier in self._entries and target.socket is None and target.port is None:
            return earlier
        if self.config.only_named:
            return None
        return f"{name} (not configured)" if name in self._entries else name

    def _entry_of(self, name: str, target: Target) -> ConfiguredServer | None:
        """Return the process's entry in agent.toml. The sensor binds ``name`` to the data directory."""
        self._configured.try_addresses(target)
        found = self._configured.name_of(target, name)
        return self._entries[found] if found is not None else None

    def own_name_of(self, name: str) -> str | None:
        """Return the agent's name for the server that the sensor calls ``name``; None if there is none."""
        return self._own_names.get(name)

    def sensor_name_of(self, name: str) -> str | None:
        """Return the sensor's name for a server; None if the sensor has not reported the server."""
        return next((theirs for theirs, own in list(self._own_names.items()) if own == name), None)

    def forget_ended(self) -> None:
        """Remove servers that exited long ago, and the oldest ones if too many have exited.

        Servers that are configured in agent.toml are kept.
        """
        ended = [server for server in self if server.up is False and not server.expected]
        ended.sort(key=lambda server: server.seen_at, reverse=True)
        for number, server in enumerate(ended):
            if number >= _MAX_ENDED or self._clock() - server.seen_at > _REMEMBER_S:
                self.close(server)
                del self._known[server.name]
        known = self._known
        self._own_names = {theirs: own for theirs, own in self._own_names.items() if own in known}

    def close(self, server: ObservedServer) -> None:
        """Close the server's connections."""
        if server.channel is not None:
            server.channel.close()

    def _make_channel(self, target: Target | None, named: ConfiguredServer | None) -> SqlChannel | None:
        settings = self.config.sql
        if not settings.enabled:
            return None
        file = (named and named.defaults_file) or settings.defaults_file
        user = (named and named.user) or settings.user
        connect: Callable[..., Connection]
        if named is not None and named.host is not None and named.port is not None:
            chosen = replace(target, chosen=True) if target else None  # configured by its host and port
            connect = partial(sql.connect_tcp, named.host, named.port, file, user, target=chosen)
        elif target is not None:
            connect = partial(_connect, target, named, file, user)
        else:
            return None
        flavour, version = (target.flavour, target.version) if target else ("", ())
        timeout = slowness.scaled(settings.timeout_seconds)
        for_metrics, for_state = Unanswered(), Unanswered()
        for_captures = Unanswered(_MAX_UNANSWERED_CAPTURES)
        connect_in_time = partial(connect, timeout)
        collector = SqlCollector(
            partial(connect_in_time, unanswered=for_metrics),
            sql_catalog.default(),
            flavour,
            version,
            timeout,
        )
        heartbeat = Heartbeat(table, settings.heartbeat_utc) if (table := settings.heartbeat_table) else None
        state = StateCollector(
            partial(connect_in_time, unanswered=for_state),
            state_catalog.default(),
            flavour,
            version,
            settings.state_seconds,
            heartbeat,
        )
        process = str(target.pid) if target else named.name if named else ""
        return SqlChannel(
            collector, state, partial(connect, unanswered=for_captures), self.workers, process,
            (for_metrics, for_state, for_captures),
        )  # fmt: skip


def _address(entry: ConfiguredServer) -> ServerAddress:
    """Return the entry's address on this host."""
    return ServerAddress(entry.name, entry.socket, entry.port if _is_local(entry) else None)


def _is_local(entry: ConfiguredServer) -> bool:
    return entry.host in (None, *_LOCAL_HOSTS)


def _connect(
    target: Target,
    named: ConfiguredServer | None,
    file: str | None,
    user: str | None,
    timeout: float,
    unanswered: Unanswered,
) -> Connection:
    """Connect to a local server. A server in a container must be configured as ``[[server]]``."""
    proc = ProcFs()
    chosen = named is not None and choice.chosen_by(proc, target, named.socket, named.port)
    return sql.connect(replace(target, chosen=chosen), file, user, timeout, proc=proc, unanswered=unanswered)


def same(before: Target, now: Target) -> bool:
    """Return whether both targets denote the same process."""
    return (before.pid, before.start_time) == (now.pid, now.start_time)


def _same_endpoint(before: Target | None, now: Target) -> bool:
    """Return whether a connection to ``before`` remains valid for ``now``."""
    return before is not None and same(before, now) and (before.socket, before.port) == (now.socket, now.port)
