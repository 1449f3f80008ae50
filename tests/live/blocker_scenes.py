"""Make clients wait for locks of each kind with known holders, and define what `diagnose` must name.

``python -m live.blocker_scenes`` prints the table in docs/servers.md.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from servers import SERVERS
from waiting import until
from workloads import Idle, MetadataLock, RowLock
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from servers import Server

WAITERS: Final = 8
RECORD: Final = "performance-schema-instrument=wait/lock/metadata/sql/mdl=ON"
_RECORDED: Final = (f"--{RECORD}",)
_RECORDED_BY_MARIADB: Final = ("--performance-schema=ON", *_RECORDED)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A server with options, and what `diagnose` must name there for metadata locks.

    ``source`` names the source from which `diagnose` reads the holders. If it is empty, the output must
    contain ``setting`` instead of a holder.
    """

    server: str
    options: tuple[str, ...] = ()
    source: str = ""
    setting: str = "performance_schema"

    @property
    def title(self) -> str:
        """Return the first cell of this configuration's row in the table."""
        if not self.options:
            return self.server
        return f"{self.server} with {' and '.join(f'`{one[2:]}`' for one in self.options)}"


_DEBUG: Final = "the server's memory, if there is debug information"
_EXACT: Final = "the server's memory, on exactly this version"
_LISTED: Final = "`performance_schema.metadata_locks`"
CONFIGURATIONS: Final = (
    Configuration("mysql-5.5.9", source=_DEBUG),
    Configuration("mysql-5.6.24", source=_DEBUG),
    Configuration("mysql-5.7.22", source=_EXACT),
    Configuration("mysql-5.7.22", _RECORDED, f"{_LISTED}; {_EXACT}"),
    Configuration("mysql-8.0.31", source=f"{_LISTED}; {_EXACT}"),
    Configuration("mysql-9.7", source=f"{_LISTED}; the server's memory, on exactly 9.7.4"),
    Configuration("mariadb-10.5"),
    Configuration("mariadb-10.5", _RECORDED_BY_MARIADB, _LISTED),
    Configuration("mariadb-10.11"),
    Configuration("mariadb-10.11", _RECORDED_BY_MARIADB, _LISTED),
    Configuration("mariadb-11.4.5", source=_DEBUG),
)


@contextmanager
def _row(server: Server) -> Iterator[int]:
    with RowLock(server, WAITERS) as load:
        [holder] = load.listed("COMMAND = 'Sleep'")
        yield holder


@contextmanager
def _table(server: Server) -> Iterator[int]:
    with MetadataLock(server, WAITERS) as load:
        [holder] = load.listed("COMMAND = 'Sleep'")
        yield holder


@contextmanager
def _held(server: Server, hold: tuple[str, ...], request: str, state: str) -> Iterator[int]:
    """Hold a lock with the statements ``hold``, while clients run ``request`` and wait in ``state``."""
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY) ENGINE=InnoDB")
        with (
            Crowd(server, 1, idle.database, hold) as holder,
            Crowd(server, WAITERS, idle.database) as waiters,
        ):
            waiters.send(request)
            until(lambda: len(idle.listed(f"STATE = 'Waiting for {state}'")) == WAITERS)
            yield holder.ids[0]


def _global(server: Server) -> AbstractContextManager[int]:
    state = "backup lock" if server.spec.flavour == "mariadb" else "global read lock"
    return _held(server, ("FLUSH TABLES WITH READ LOCK",), "INSERT INTO t1 VALUES (CONNECTION_ID())", state)


def _backup(server: Server) -> AbstractContextManager[int]:
    if server.spec.flavour == "mariadb":
        hold = ("BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT")
        return _held(server, hold, "INSERT INTO t1 VALUES (CONNECTION_ID())", "backup lock")
    return _held(server, ("LOCK INSTANCE FOR BACKUP",), "ALTER TABLE t1 ADD b INT", "backup lock")


@contextmanager
def _schema(server: Server) -> Iterator[int]:
    """Hold a schema's metadata lock with an unfinished CREATE TABLE, while clients wait to alter it."""
    with Idle(server, 1) as idle, Crowd(server, 1, idle.database) as holder:
        holder.send("CREATE TABLE t2 AS SELECT SLEEP(1000)")
        until(lambda: idle.listed("STATE = 'User sleep'"))
        with Crowd(server, WAITERS, "information_schema") as waiters:
            waiters.send(f"ALTER DATABASE {idle.database} CHARACTER SET latin1")
            state = "Waiting for schema metadata lock"
            processes = f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = '{state}'"
            until(lambda: idle.sql(processes) == [(WAITERS,)])
            yield holder.ids[0]


@dataclass(frozen=True, slots=True)
class Scene:
    """A kind of lock, a function that acquires it, and the finding that `diagnose` must report."""

    title: str
    hold: Callable[[Server], AbstractContextManager[int]]
    finding: str = "metadata_lock"

    def exists(self, server: str) -> bool:
        """Return whether the server has this kind of lock. In MySQL, the backup lock was added in 8.0."""
        mysql = SERVERS[server].flavour == "mysql"
        return not (self.hold is _backup and mysql and server < "mysql-8")

    def named(self, configuration: Configuration) -> bool:
        """Return whether `diagnose` must name the holder on this configuration."""
        return self.finding != "metadata_lock" or bool(configuration.source)


SCENES: Final = {
    "row": Scene("row", _row, "row_lock_convoy"),
    "table": Scene("table (metadata lock)", _table),
    "global": Scene("`FLUSH TABLES WITH READ LOCK`", _global),
    "backup": Scene("backup lock", _backup),
    "schema": Scene("database", _schema),
}


def table() -> Iterator[str]:
    """Yield the lines of the table in docs/servers.md."""
    yield f"| server | {' | '.join(scene.title for scene in SCENES.values())} | source of metadata locks |"
    yield f"|---|{'---|' * len(SCENES)}---|"
    for one in CONFIGURATIONS:
        cells = [_cell(scene, one) for scene in SCENES.values()]
        yield f"| {one.title} | {' | '.join(cells)} | {one.source or 'none: the line names the setting'} |"


def _cell(scene: Scene, configuration: Configuration) -> str:
    if not scene.exists(configuration.server):
        return "–"
    return "named" if scene.named(configuration) else "setting"


if __name__ == "__main__":
    print("\n".join(table()))
