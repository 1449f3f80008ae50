"""The servers that the agent observes: reported by the sensor, configured, or discovered."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Outcome
from innoscope.common.workers import Workers
from innoscope.daemon.protocol.server_names import ServerNames
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.runner import Runner, slow_kind
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.target import choice, sql
from innoscope.target.discover import still_same
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.agent.config import Server as ConfiguredServer
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

#: Seconds for which a server that exited is still reported, with mysqld_up 0.
_REMEMBER_S: Final = 3600.0
#: Maximum number of exited servers to report, higher than the sensor's limit.
_MAX_ENDED: Final = 64
#: Number of threads for SQL queries. A server that does not respond occupies one of them for
#: ``sql.timeout_seconds``.
_SQL_THREADS: Final = 32
_LOCAL_HOSTS: Final = ("127.0.0.1", "::1", "localhost")


class SqlChannel:
    """SQL access to one server: its collector, and the runner of that collector.

    ``connect`` opens another connection; its argument is a timeout in seconds.
    """

    def __init__(
        self,
        collector: SqlCollector,
        connect: Callable[[float], Connection],
        workers: Workers,
        name: str,
    ) -> None:
        self.connect = connect
        self._collector = collector
        self._runner = Runner([collector], workers, name)

    def start(self, timeout: float) -> None:
        """Start the queries, with a timeout in seconds."""
        self._collector.timeout = timeout
        self._runner.start()

    def outcome(self) -> Outcome:
        """Return the queries' result, which is a failure with samples if the account lacks privileges."""
        (outcome,) = self._runner.outcomes()
        shortfall = self._collector.shortfall
        if outcome.success and shortfall is not None:
            return Outcome(outcome.collector, False, outcome.seconds, outcome.samples, shortfall)
        return outcome

    def close(self) -> None:
        """Close the connection. A running query ends at its timeout."""
        self._runner.close()


@dataclass(slots=True)
class ObservedServer:
    """An observed server. ``name`` is its ``server`` label; ``target`` is None if it is on another host."""

    name: str
    target: Target | None
    channel: SqlChannel | None
    seen_at: float
    outcomes: tuple[Outcome, ...] = ()  # from the sensor, in the current scrape
    collectors: tuple[str, ...] = ()  # names of the collectors in the sensor's last reply

    @property
    def life(self) -> Hashable:
        """Return the identity of the server's process: pid and start time."""
        return (self.target.pid, self.target.start_time) if self.target else None

    @property
    def up(self) -> bool | None:
        """Return whether the server's process is running; None if the server is on another host."""
        return still_same(self.target) if self.target else None


class Servers:
    """All observed servers, by name."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        kinds = (SqlCollector.name, slow_kind(SqlCollector.name))
        self.workers = Workers(sizes=dict.fromkeys(kinds, _SQL_THREADS))
        self._clock = clock
        self._names = ServerNames({}, ProcFs())
        self._known: dict[str, ObservedServer] = {}
        self._own_names: dict[str, str] = {}
        for named in config.server:
            if named.host is not None and named.host not in _LOCAL_HOSTS:
                self._known[named.name] = ObservedServer(
                    named.name, None, self._make_channel(None, named), clock()
                )

    def __iter__(self) -> Iterator[ObservedServer]:
        return iter(list(self._known.values()))

    def register_from_sensor(self, name: str, target: Target) -> ObservedServer | None:
        """Register a server that the sensor reported. Return None if it is excluded by ``only_named``.

        A new process under a known name gets a new connection.
        """
        own_name = self.own_name(name, target)
        if own_name is None:
            return None
        self._own_names[name] = own_name
        named, name = self._named(target), own_name
        self._drop_others(name, target)
        server = self._known.get(name)
        if server is None or server.target != target:
            channel = server.channel if server is not None else None
            if channel is not None and server is not None and not _same_endpoint(server.target, target):
                channel.close()
                channel = None
            server = ObservedServer(name, target, channel or self._make_channel(target, named), self._clock())
            self._known[name] = server
        server.seen_at = self._clock()
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
            self.register_from_sensor(known.name if known else self._names.give(target, alive), target)

    def own_name(self, name: str, target: Target) -> str | None:
        """Return the configured name, else the sensor's name; None if ``only_named`` excludes the server."""
        named = self._named(target)
        if named is not None:
            return named.name
        return None if self.config.only_named else name

    def own_name_of(self, name: str) -> str | None:
        """Look up the agent's name for a server by the sensor's name; None if it is not registered."""
        return self._own_names.get(name)

    def sensor_name_of(self, name: str) -> str | None:
        """Look up the sensor's name for a server; None if the sensor has not reported the server."""
        return next((theirs for theirs, own in list(self._own_names.items()) if own == name), None)

    def forget_ended(self) -> None:
        """Remove servers that exited long ago, and the oldest ones if too many have exited."""
        ended = [server for server in self if server.up is False]
        ended.sort(key=lambda server: server.seen_at, reverse=True)
        for number, server in enumerate(ended):
            if number >= _MAX_ENDED or self._clock() - server.seen_at > _REMEMBER_S:
                self.close(server)
                del self._known[server.name]
        known = self._known
        self._own_names = {theirs: own for theirs, own in self._own_names.items() if own in known}

    def close(self, server: ObservedServer) -> None:
        """Close the server's connection."""
        if server.channel is not None:
            server.channel.close()

    def _named(self, target: Target) -> ConfiguredServer | None:
        """Return the configured server that has the target's socket or port; None if there is none."""
        for named in self.config.server:
            if named.socket is not None and named.socket == target.socket:
                return named
            if named.host in (None, *_LOCAL_HOSTS) and named.port == target.port and named.port:
                return named
        return None

    def _make_channel(self, target: Target | None, named: ConfiguredServer | None) -> SqlChannel | None:
        settings = self.config.sql
        if not settings.enabled:
            return None
        file = (named and named.defaults_file) or settings.defaults_file
        user = (named and named.user) or settings.user
        connect: Callable[[float], Connection]
        if named is not None and named.host is not None and named.port is not None:
            chosen = replace(target, chosen=True) if target else None  # configured by its host and port
            connect = partial(sql.connect_tcp, named.host, named.port, file, user, target=chosen)
        elif target is not None:
            connect = partial(_connect, target, named, file, user)
        else:
            return None
        flavour, version = (target.flavour, target.version) if target else ("", ())
        connect_in_time = partial(connect, settings.timeout_seconds)
        collector = SqlCollector(
            connect_in_time, sql_catalog.default(), flavour, version, settings.timeout_seconds
        )
        process = str(target.pid) if target else named.name if named else ""
        return SqlChannel(collector, connect, self.workers, process)


def _connect(
    target: Target, named: ConfiguredServer | None, file: str | None, user: str | None, timeout: float
) -> Connection:
    """Connect to a local server. A server in a container must be configured as ``[[server]]``."""
    proc = ProcFs()
    chosen = named is not None and choice.chosen_by(proc, target, named.socket, named.port)
    return sql.connect(replace(target, chosen=chosen), file, user, timeout, proc=proc)


def same(before: Target, now: Target) -> bool:
    """Return whether both targets denote the same process."""
    return (before.pid, before.start_time) == (now.pid, now.start_time)


def _same_endpoint(before: Target | None, now: Target) -> bool:
    """Return whether a connection to ``before`` remains valid for ``now``."""
    return before is not None and same(before, now) and (before.socket, before.port) == (now.socket, now.port)
