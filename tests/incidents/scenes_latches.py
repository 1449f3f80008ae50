"""Define incidents with contended latches, read-ahead and index statistics."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from incidents.cures import Cure
from incidents.lab import Incident
from incidents.table_filling import doubled
from workloads import Cpu, Idle, Repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Options that make the server read pages from disk, not from the kernel's cache, and rarely call fsync.
_DISK = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-doublewrite=0",
)
_POOL_16M = "--innodb-buffer-pool-size=16M"
_POOL_8M = "--innodb-buffer-pool-size=8M"
_POOL_128M = "--innodb-buffer-pool-size=128M"
#: The default before 5.6: pages become young at their first access. Only young pages trigger random
#: read-ahead.
_YOUNG = "--innodb-old-blocks-time=0"
_LONG_SPIN = "--innodb-sync-spin-loops=200"
#: Number of rows in a table of 45 MB; each row is about 1 KB in size.
_WIDE = 40_000
_ROWS_OF_TWO_PAGES = 30
#: An option that makes INSERT … SELECT assign ids without gaps.
_ONE_BY_ONE = "--innodb-autoinc-lock-mode=0"
#: An SQL expression for a unique, unordered value. It avoids MD5, which MySQL 9.7 does not have.
_ANY = "CONCAT(CRC32(RAND()), RAND())"


def _wide(server: Server) -> None:
    """Create ``lab.wide``, a 45 MB table with rows of about 1 KB. It does not fit into the small pools."""
    server.sql(
        "CREATE DATABASE lab",
        "CREATE TABLE lab.wide (a INT AUTO_INCREMENT PRIMARY KEY, pad CHAR(255), more CHAR(255),"
        " last CHAR(255), rest CHAR(255)) ENGINE=InnoDB",
        *doubled("lab.wide", "pad, more, last, rest", "'x', 'x', 'x', 'x'", _WIDE),
    )


def _short_ranges(server: Server) -> Repeated:
    """Read about 14 consecutive pages at a random position; the pages after them are not needed."""
    return Repeated(
        server, 8, ["SELECT COUNT(pad) FROM lab.wide WHERE a BETWEEN $R AND $R + 200"], among=_WIDE
    )


def _scattered(server: Server) -> Repeated:
    """Read every other page of one or two extents, so that read-ahead fetches pages that no query needs."""
    ids = ", ".join(f"$R + {_ROWS_OF_TWO_PAGES * n}" for n in range(20))
    return Repeated(server, 8, [f"SELECT COUNT(pad) FROM lab.wide WHERE a IN ({ids})"], among=_WIDE)


def _scans(server: Server) -> Repeated:
    return Repeated(server, 8, ["SELECT COUNT(*) FROM lab.wide WHERE pad = 'z'"])


@contextlib.contextmanager
def _crowd_listed(server: Server) -> Iterator[None]:
    """Read the process list from many clients; each read holds the list's mutex."""
    with Idle(server, 1_000), Repeated(server, 32, ["SELECT COUNT(*) FROM information_schema.PROCESSLIST"]):
        yield


@contextlib.contextmanager
def _crowd_beside(server: Server) -> Iterator[None]:
    with Idle(server, 1_000), Cpu(server, 32):
        yield


def _sampled(server: Server) -> None:
    """Create tables whose indexes together do not fit into the pool."""
    server.sql("CREATE DATABASE lab")
    for n in range(20):
        server.sql(
            f"CREATE TABLE lab.s{n} (a INT AUTO_INCREMENT PRIMARY KEY, b CHAR(200), c CHAR(200), KEY (b),"
            " KEY (c)) ENGINE=InnoDB",
            *doubled(f"lab.s{n}", "b, c", f"{_ANY}, {_ANY}", 2_000),
        )


def _shown(server: Server) -> Repeated:
    statement = "SELECT SUM(DATA_LENGTH) FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'lab'"
    return Repeated(server, 8, [statement])


def _latch(name: str, server: str) -> Incident:
    return Incident(
        name, server, "latch_contention", _crowd_listed, _crowd_beside,
        options=("--max-connections=1200",), seconds=10,
        what="32 connections query information_schema.PROCESSLIST in a loop, with 1,000 connections in it",
    )  # fmt: skip


INCIDENTS = (
    _latch("latch-56", "mysql-5.6.24"),
    _latch("latch-57", "mysql-5.7.22"),
    _latch("latch-80", "mysql-8.0.31"),
    _latch("latch-97", "mysql-9.7"),
    Incident(
        "read-ahead-harm-559", "mysql-5.5.9", "read_ahead_harm", _short_ranges, _short_ranges,
        setup=_wide, options=(*_DISK, _ONE_BY_ONE, _POOL_16M, "--innodb-read-ahead-threshold=0"),
        twin_options=(*_DISK, _ONE_BY_ONE, _POOL_128M, "--innodb-read-ahead-threshold=0"),
        cure=Cure(("toggle", "set", "read_ahead", "off", "--yes"), factor=1.3, seconds=4),
        what="8 connections read short random ranges; read-ahead fetches pages that no query needs",
    ),
    Incident(
        "random-read-ahead-56", "mysql-5.6.24", "random_read_ahead", _scattered, _scattered,
        setup=_wide, options=(*_DISK, _ONE_BY_ONE, _POOL_16M, _YOUNG, "--innodb-random-read-ahead=ON"),
        twin_options=(*_DISK, _ONE_BY_ONE, _POOL_16M, _YOUNG),
        cure=Cure(("toggle", "set", "read_ahead_random", "off", "--yes"), factor=1.1, seconds=4),
        what="8 connections read every other page of a 40-page range by primary key; random read-ahead"
        " fetches the pages in between",
    ),
    Incident(
        "spinning-559", "mysql-5.5.9", "spinning", _scans, _scans,
        setup=_wide, options=(*_DISK, _POOL_16M, _LONG_SPIN),
        twin_options=(*_DISK, _POOL_128M, _LONG_SPIN),
        what="8 connections scan the same table from disk and wait for the same pages",
    ),
    Incident(
        "statistics-559", "mysql-5.5.9", "statistics", _shown, _shown,
        setup=_sampled, options=(*_DISK, _POOL_8M),
        twin_options=(*_DISK, _POOL_8M, "--innodb-stats-on-metadata=0"),
        what="8 connections query information_schema.TABLES; each query samples every index for statistics",
    ),
)  # fmt: skip
