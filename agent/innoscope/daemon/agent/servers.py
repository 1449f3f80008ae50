"""The servers that the agent knows: from the sensor, from the configuration, or found by itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Outcome
from innoscope.common.workers import Workers
from innoscope.daemon.protocol.server_names import Names
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.runner import Runner, slow_kind
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.target import choice, sql
from innoscope.target.discover import still_same
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.agent.config import Server as Named
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

#: Seconds for which a server that ended is still told of, with mysqld_up 0.
_REMEMBERED: Final = 3600.0
#: And no more than so many of them: the sensor tells of fewer.
_MOST_ENDED: Final = 64
#: Threads that wait for answers over SQL, however many servers there are. One that does not answer takes its
#: thread for ``sql.timeout_seconds``.
_SQL_THREADS: Final = 32
_HERE: Final = ("127.0.0.1", "::1", "localhost")


class Lane:
    """The way to one server over SQL: a collector, and what runs it.

    ``connect`` makes a connection beside the collector's; it takes seconds of patience.
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
        """Begin to ask; ``timeout`` is in seconds."""
        self._collector.timeout = timeout
        self._runner.start()

    def outcome(self) -> Outcome:
        """What came of it. An account that may not see all is a failure with samples."""
        (outcome,) = self._runner.outcomes()
        shortfall = self._collector.shortfall
        if outcome.success and shortfall is not None:
            return Outcome(outcome.collector, False, outcome.seconds, outcome.samples, shortfall)
        return outcome

    def close(self) -> None:
        """Let go; a question that is still under way ends by its own timeout."""
        self._runner.close()


@dataclass(slots=True)
class Server:
    """One server under the name that its series have. ``target`` is None where it is on another host."""

    name: str
    target: Target | None
    lane: Lane | None
    seen_at: float
    outcomes: tuple[Outcome, ...] = ()  # of the sensor, this time
    collectors: tuple[str, ...] = ()  # which of them there were the last time the sensor answered

    @property
    def life(self) -> Hashable:
        """What names its process for good."""
        return (self.target.pid, self.target.start_time) if self.target else None

    @property
    def up(self) -> bool | None:
        """Whether its process is there; None where we cannot know."""
        return still_same(self.target) if self.target else None


class Servers:
    """All of them, by name."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        kinds = (SqlCollector.name, slow_kind(SqlCollector.name))
        self.workers = Workers(sizes=dict.fromkeys(kinds, _SQL_THREADS))
        self._clock = clock
        self._names = Names({}, ProcFs())
        self._known: dict[str, Server] = {}
        self._sensor_s: dict[str, str] = {}
        for named in config.server:
            if named.host is not None and named.host not in _HERE:
                self._known[named.name] = Server(named.name, None, self._lane(None, named), clock())

    def __iter__(self) -> Iterator[Server]:
        return iter(list(self._known.values()))

    def met(self, name: str, target: Target) -> Server | None:
        """The server that the sensor calls so, None if it is not wanted.

        Another process under a known name gets a new connection.
        """
        wanted = self.called(name, target)
        if wanted is None:
            return None
        self._sensor_s[name] = wanted
        named, name = self._named(target), wanted
        self._drop_others(name, target)
        server = self._known.get(name)
        if server is None or server.target != target:
            lane = server.lane if server is not None else None
            if lane is not None and server is not None and not _reached_alike(server.target, target):
                lane.close()
                lane = None
            server = Server(name, target, lane or self._lane(target, named), self._clock())
            self._known[name] = server
        server.seen_at = self._clock()
        return server

    def _drop_others(self, name: str, target: Target) -> None:
        """Let go of names that we gave this process ourselves, before the sensor said how it is called."""
        for server in self:
            if server.name != name and server.target is not None and same(server.target, target):
                self.close(server)
                del self._known[server.name]

    def found(self, targets: Iterable[Target]) -> None:
        """Take in those that we found ourselves: what there is to do while the sensor does not answer."""
        for target in targets:
            known = next((server for server in self if server.target and same(server.target, target)), None)
            alive = {server.name for server in self if server.up}
            self.met(known.name if known else self._names.give(target, alive), target)

    def called(self, name: str, target: Target) -> str | None:
        """Our name of the server that the sensor calls so; None if it is not wanted."""
        named = self._named(target)
        if named is not None:
            return named.name
        return None if self.config.only_named else name

    def name_of(self, name: str) -> str | None:
        """Our name of a server of which we only know how the sensor calls it; None before it was met."""
        return self._sensor_s.get(name)

    def sensor_s_name(self, name: str) -> str | None:
        """How the sensor calls a server of ours; None where it has not told of it."""
        return next((its for its, ours in list(self._sensor_s.items()) if ours == name), None)

    def forget_the_gone(self) -> None:
        """Drop those that ended long ago, and the first to end if there are many."""
        ended = [server for server in self if server.up is False]
        ended.sort(key=lambda server: server.seen_at, reverse=True)
        for number, server in enumerate(ended):
            if number >= _MOST_ENDED or self._clock() - server.seen_at > _REMEMBERED:
                self.close(server)
                del self._known[server.name]
        known = self._known
        self._sensor_s = {its: ours for its, ours in self._sensor_s.items() if ours in known}

    def close(self, server: Server) -> None:
        """Let go of its connection."""
        if server.lane is not None:
            server.lane.close()

    def _named(self, target: Target) -> Named | None:
        """The configured server that this is."""
        for named in self.config.server:
            if named.socket is not None and named.socket == target.socket:
                return named
            if named.host in (None, *_HERE) and named.port == target.port and named.port:
                return named
        return None

    def _lane(self, target: Target | None, named: Named | None) -> Lane | None:
        settings = self.config.sql
        if not settings.enabled:
            return None
        file = (named and named.defaults_file) or settings.defaults_file
        user = (named and named.user) or settings.user
        connect: Callable[[float], Connection]
        if named is not None and named.host is not None and named.port is not None:
            chosen = replace(target, chosen=True) if target else None  # over TCP it is asked as configured
            connect = partial(sql.connect_tcp, named.host, named.port, file, user, target=chosen)
        elif target is not None:
            connect = partial(_connect, target, named, file, user)
        else:
            return None
        flavour, version = (target.flavour, target.version) if target else ("", ())
        within = partial(connect, settings.timeout_seconds)
        asking = SqlCollector(within, sql_catalog.default(), flavour, version, settings.timeout_seconds)
        return Lane(asking, connect, self.workers, str(target.pid) if target else named.name if named else "")


def _connect(
    target: Target, named: Named | None, file: str | None, user: str | None, timeout: float
) -> Connection:
    """Connect to a server that was found. In a container it has to be one that a ``[[server]]`` leads to."""
    proc = ProcFs()
    chosen = named is not None and choice.chosen_by(proc, target, named.socket, named.port)
    return sql.connect(replace(target, chosen=chosen), file, user, timeout, proc=proc)


def same(before: Target, now: Target) -> bool:
    """Whether both are the same process."""
    return (before.pid, before.start_time) == (now.pid, now.start_time)


def _reached_alike(before: Target | None, now: Target) -> bool:
    """Whether a connection to one is a connection to the other."""
    return before is not None and same(before, now) and (before.socket, before.port) == (now.socket, now.port)
