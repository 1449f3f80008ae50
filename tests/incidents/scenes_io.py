"""Define incidents with heavy writes and reads, and a lack of memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from incidents.lab import Incident
from workloads import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Options with which commits do not wait for the disk.
_LAZY = ("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=O_DIRECT")


def _storm(server: Server) -> Writers:
    """Write up to 150 MB of redo a second, all of which must fit into the twin's redo log."""
    return Writers(server, 4, rewrite=True)


def _dirtying(server: Server) -> Writers:
    return Writers(server, 4, megabytes=48, rate=300)


def _from_clean(server: Server) -> Writers:
    return Writers(server, 4, megabytes=48, rate=300, clean=True)


@contextmanager
def _after_a_burst(server: Server) -> Iterator[None]:
    """Fill the redo log once; then make few changes, for which it is still too small."""
    with _storm(server):
        pass
    with Writers(server, 4, rewrite=True, rate=300):
        yield


def _dirty(*more: str) -> tuple[str, ...]:
    return (*_LAZY, "--innodb-max-dirty-pages-pct=20", "--innodb-log-file-size=256M", *more)


_FAST = "--innodb-io-capacity=20000"
_SLOW = "--innodb-io-capacity=100"

INCIDENTS = (
    Incident(
        "flushing-storm-56",
        "mysql-5.6.24",
        "flushing_storm",
        _storm,
        _storm,
        options=(*_LAZY, "--innodb-log-file-size=1M"),
        twin_options=(*_LAZY, "--innodb-log-file-size=1G"),
        what="four clients update rows with a redo log of 2 MB",
    ),
    Incident(
        "flushing-storm-97",
        "mysql-9.7",
        "flushing_storm",
        _storm,
        _storm,
        options=(*_LAZY, "--innodb-redo-log-capacity=8M", "--skip-log-bin"),
        twin_options=(*_LAZY, "--innodb-redo-log-capacity=2G", "--skip-log-bin"),
        what="four clients update rows with a redo log of 8 MB",
    ),
    Incident(
        "flushing-storm-1145",
        "mariadb-11.4.5",
        "flushing_storm",
        _storm,
        _storm,
        options=(*_LAZY, "--innodb-log-file-size=4M"),
        twin_options=(*_LAZY, "--innodb-log-file-size=2G"),
        what="four clients update rows with a redo log of 4 MB",
    ),
    Incident(
        "redo-too-small",
        "mysql-5.6.24",
        "redo_too_small",
        _after_a_burst,
        _after_a_burst,
        options=(*_LAZY, "--innodb-log-file-size=4M", "--innodb-flushing-avg-loops=1"),
        twin_options=(*_LAZY, "--innodb-log-file-size=512M", "--innodb-flushing-avg-loops=1"),
        what="a few changes per second after a burst; the redo log is full within seconds",
    ),
    Incident(
        "dirty-limit-559",
        "mysql-5.5.9",
        "dirty_limit",
        _dirtying,
        _from_clean,
        options=_dirty(_SLOW),
        twin_options=_dirty(_FAST),
        what="more pages become dirty than the master thread may write with innodb_io_capacity",
    ),
    Incident(
        "dirty-limit-56",
        "mysql-5.6.24",
        "dirty_limit",
        _dirtying,
        _from_clean,
        options=_dirty(_SLOW),
        twin_options=_dirty(_FAST, "--innodb-flushing-avg-loops=1"),
        what="pages become dirty after an import, and 5.6 flushes only at the average rate of redo",
    ),
)
