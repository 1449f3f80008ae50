"""Compare Innoscope's metrics with those of Debian's mysqld_exporter on the same server.

dashboards/mysqld_exporter.yaml lists the pairs.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from clusters import GaleraCluster
from clusters.galera import SERVER as GALERA
from generate.exporter import load
from incidents.scenes_replica import OPTIONS, following
from innoscope.metrics.collectors.state import Heartbeat
from live.changing import connected
from live.sql_metrics import SEVEN_SECONDS_AGO, collected
from mysqld_exporter import Exporter
from scale import few, long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from generate.exporter import ExporterMetric
    from mysqld_exporter import Values

HEARTBEAT = (
    "--collect.heartbeat", "--collect.heartbeat.database=shop", "--collect.heartbeat.table=heartbeat",
)  # fmt: skip
#: Status variables that MySQL does not have. Innoscope reads the values from elsewhere.
_NO_STATUS = frozenset(
    f"mysql_global_status_innodb_{name}" for name in ("checkpoint_age", "history_list_length", "ibuf_merges")
)
#: mysqld_exporter 0.14 uses SHOW SLAVE STATUS, which MySQL 8.4 removed.
_NO_REPLICA = frozenset(
    f"mysql_slave_status_{name}"
    for name in (
        "slave_io_running", "slave_sql_running", "last_errno", "seconds_behind_master", "sql_delay",
        "relay_log_space",
    )
)  # fmt: skip
#: Pairs for which only Innoscope has a value, by the replica's server.
ONLY_OURS: dict[str, frozenset[str]] = {
    "mariadb-10.11": frozenset(),
    "mysql-5.6.24": _NO_STATUS,
    "mysql-8.0.31": _NO_STATUS,
    "mysql-9.7": _NO_STATUS | _NO_REPLICA,
}
#: Pairs for which only mysqld_exporter has a value: MariaDB reports zeros without Galera.
ONLY_THEIRS = {
    "mariadb-10.11": frozenset(
        f"mysql_global_status_wsrep_{name}" for name in ("cluster_size", "local_bf_aborts", "ready")
    )
}
#: Minimum number of pairs with equal values.
LEAST = 20


@dataclass
class Comparison:
    """The names of the pairs by result; ``different`` also contains the values."""

    equal: set[str] = field(default_factory=set)
    different: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    only_ours: set[str] = field(default_factory=set)
    only_theirs: set[str] = field(default_factory=set)


def value(values: Values, name: str, one: ExporterMetric) -> float | None:
    """Return the value of mysqld_exporter's series, or None if the series is missing."""
    found = [
        number
        for labels, number in values.get(one.series or name, ())
        if all(labels.get(label) == wanted for label, wanted in one.matchers.items())
    ]
    if not found:
        return None
    return found[0] - (values[one.minus][0][1] if one.minus else 0)


def compared(server: Server, others: int, heartbeat: Heartbeat | None, *options: str) -> Comparison:
    """Compare the pairs.

    A pair is equal if Innoscope's value lies between the values of two scrapes, one before it and one after.
    ``others`` is the number of connections that stay open. Closed ones must have ended, because they count.
    """
    with closing(server.connect()) as watching, Exporter(server, *options) as exporter:

        def until_closed() -> None:
            until(lambda: connected(watching) == others + 1, lambda: connected(watching))

        until_closed()
        before = exporter.scrape()
        until_closed()
        ours = collected(server, heartbeat) | {"sql_up": 1}
        until_closed()
        after = exporter.scrape()
    found = Comparison()
    for name, one in load().metrics.items():
        if one.metric is None:
            continue
        first, last = value(before, name, one), value(after, name, one)
        own = ours.get(".".join((one.metric, *one.labels.values())))
        if first is None or last is None:
            found.only_ours |= {name} if own is not None else set()
        elif own is None:
            found.only_theirs.add(name)
        elif min(first, last) <= own <= max(first, last):
            found.equal.add(name)
        else:
            found.different[name] = (first, own, last)
    return found


@pytest.mark.parametrize(
    "name", few(tuple(ONLY_OURS), "mariadb-10.11", reason="the values come from the same variables")
)
def test_values_of_a_replica_are_equal(name: str) -> None:
    with Server(name, options=OPTIONS) as replica, following(replica) as pair:
        pair.change("CREATE TABLE shop.heartbeat (ts VARCHAR(26) NOT NULL, server_id INT PRIMARY KEY)")
        pair.change(f"REPLACE INTO shop.heartbeat SELECT {SEVEN_SECONDS_AGO}, 1")
        until(lambda: replica.sql("SHOW TABLES IN shop LIKE 'heartbeat'"))
        until(lambda: replica.sql("SELECT 1 FROM shop.heartbeat"))
        found = compared(replica, 1, Heartbeat("shop.heartbeat", utc=False), *HEARTBEAT)

    assert found.different == {}
    assert found.only_ours == ONLY_OURS[name]
    assert found.only_theirs == ONLY_THEIRS.get(name, frozenset())
    assert len(found.equal) >= LEAST, sorted(found.equal)


@long("the values of a replica are compared in make test")
def test_values_of_a_galera_node_are_equal() -> None:
    with Server(GALERA) as first, GaleraCluster(first) as cluster:
        found = compared(cluster.nodes[1], 0, None)

    assert found.different == {}
    assert found.only_ours == found.only_theirs == set()
    galera = {name for name, one in load().metrics.items() if (one.metric or "").startswith("galera_")}
    assert galera <= found.equal
