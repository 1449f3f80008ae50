"""Incidents of writing, reading and memory."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from incidents.device import slow
from incidents.lab import Incident
from workloads import Writers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Commits that wait for nothing: a second of transactions may be lost.
_LAZY = ("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=O_DIRECT")


def _storm(server: Server) -> Writers:
    return Writers(server, 4, rewrite=True)


def _dirtying(server: Server) -> Writers:
    return Writers(server, 4, megabytes=48, rate=500)


@contextmanager
def _slow_commits(server: Server) -> Iterator[None]:
    with Writers(server, 4, megabytes=1, rate=20), slow(server, writes=20):
        yield


INCIDENTS = (
    Incident("flushing-storm-56", "mysql-5.6.24", "flushing_storm", _storm, _storm,
             options=(*_LAZY, "--innodb-log-file-size=1M"),
             twin_options=(*_LAZY, "--innodb-log-file-size=512M")),
    Incident("flushing-storm-97", "mysql-9.7", "flushing_storm", _storm, _storm,
             options=(*_LAZY, "--innodb-redo-log-capacity=8M", "--skip-log-bin"),
             twin_options=(*_LAZY, "--innodb-redo-log-capacity=2G", "--skip-log-bin")),
    Incident("flushing-storm-1145", "mariadb-11.4.5", "flushing_storm", _storm, _storm,
             options=(*_LAZY, "--innodb-log-file-size=4M"),
             twin_options=(*_LAZY, "--innodb-log-file-size=1G")),
    Incident("redo-too-small", "mysql-5.6.24", "redo_too_small",
             lambda s: Writers(s, 4, rewrite=True, rate=500), lambda s: Writers(s, 4, rewrite=True, rate=500),
             options=(*_LAZY, "--innodb-log-file-size=8M"), twin_options=(*_LAZY, "--innodb-log-file-size=512M")),
    Incident("dirty-limit-559", "mysql-5.5.9", "dirty_limit", _dirtying, _dirtying,
             options=(*_LAZY, "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=100", "--innodb-log-file-size=256M"),
             twin_options=(*_LAZY, "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=20000", "--innodb-log-file-size=256M")),
    Incident("dirty-limit-56", "mysql-5.6.24", "dirty_limit", _dirtying, _dirtying,
             options=(*_LAZY, "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=100", "--innodb-log-file-size=256M"),
             twin_options=(*_LAZY, "--innodb-max-dirty-pages-pct=10", "--innodb-io-capacity=20000", "--innodb-log-file-size=256M")),
)  # fmt: skip
