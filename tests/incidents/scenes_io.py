"""Define incidents with heavy writes: redo logs that are too small, and too many dirty pages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from incidents.lab import Incident
from workloads import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Options that keep commits from waiting for the disk.
_LAZY = ("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=O_DIRECT")


def _storm(server: Server) -> Writers:
    """Write up to 150 MB of redo per second, which the twin's large redo log can absorb."""
    return Writers(server, 4, rewrite=True)


def _dirtying(server: Server) -> Writers:
    return Writers(server, 4, megabytes=48, rate=300)


def _from_clean(server: Server) -> Writers:
    return Writers(server, 4, megabytes=48, rate=300, clean=True)


@contextmanager
def _after_a_burst(server: Server) -> Iterator[None]:
    """Write a burst of redo, then 300 rows per second, which the stall's small redo log cannot hold."""
    with _storm(server):
        pass
    with Writers(server, 4, rewrite=True, rate=300):
        yield


def _dirty(*more: str) -> tuple[str, ...]:
    return (*_LAZY, "--innodb-max-dirty-pages-pct=20", "--innodb-log-file-size=256M", *more)


_FAST = "--innodb-io-capacity=20000"
_SLOW = "--innodb-io-capacity=100"


def _flushing_storm(name: str, server: str, small: str, large: str, what: str) -> Incident:
    return Incident(
        name,
        server,
        "flushing_storm",
        _storm,
        _storm,
        options=(*_LAZY, small),
        twin_options=(*_LAZY, large),
        what=f"4 clients update rows, and the redo log is only {what} in size",
    )


def _redo_too_small(name: str, server: str, small: str, large: str) -> Incident:
    return Incident(
        name,
        server,
        "redo_too_small",
        _after_a_burst,
        _after_a_burst,
        options=(*_LAZY, small, "--innodb-flushing-avg-loops=1"),
        twin_options=(*_LAZY, large, "--innodb-flushing-avg-loops=1"),
        what="4 clients run 300 updates/s after a burst of writes; the redo log is full within seconds",
    )


def _dirty_limit(name: str, server: str, what: str, *twin: str) -> Incident:
    return Incident(
        name,
        server,
        "dirty_limit",
        _dirtying,
        _from_clean,
        options=_dirty(_SLOW),
        twin_options=_dirty(_FAST, *twin),
        what=what,
    )


_FILE, _CAPACITY = "--innodb-log-file-size=", "--innodb-redo-log-capacity="
_AVERAGE = "--innodb-flushing-avg-loops=1"
_TOO_SLOW = "more pages become dirty than the {} may write with innodb_io_capacity"

INCIDENTS = (
    _flushing_storm("flushing-storm-56", "mysql-5.6.24", f"{_FILE}1M", f"{_FILE}1G", "2 MB"),
    _flushing_storm("flushing-storm-57", "mysql-5.7.22", f"{_FILE}4M", f"{_FILE}1G", "8 MB"),
    _flushing_storm("flushing-storm-80", "mysql-8.0.31", f"{_CAPACITY}8M", f"{_CAPACITY}2G", "8 MB"),
    _flushing_storm("flushing-storm-97", "mysql-9.7", f"{_CAPACITY}8M", f"{_CAPACITY}2G", "8 MB"),
    _flushing_storm("flushing-storm-1145", "mariadb-11.4.5", f"{_FILE}4M", f"{_FILE}2G", "4 MB"),
    _redo_too_small("redo-too-small", "mysql-5.6.24", f"{_FILE}4M", f"{_FILE}512M"),
    _redo_too_small("redo-too-small-57", "mysql-5.7.22", f"{_FILE}4M", f"{_FILE}512M"),
    _redo_too_small("redo-too-small-80", "mysql-8.0.31", f"{_CAPACITY}8M", f"{_CAPACITY}1G"),
    _dirty_limit("dirty-limit-559", "mysql-5.5.9", _TOO_SLOW.format("master thread")),
    _dirty_limit(
        "dirty-limit-56",
        "mysql-5.6.24",
        "pages become dirty after an import, and 5.6 flushes only at the average rate of redo",
        _AVERAGE,
    ),
    _dirty_limit("dirty-limit-57", "mysql-5.7.22", _TOO_SLOW.format("page cleaner"), _AVERAGE),
    _dirty_limit("dirty-limit-80", "mysql-8.0.31", _TOO_SLOW.format("page cleaner"), _AVERAGE),
)
