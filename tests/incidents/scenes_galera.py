"""Define incidents on a Galera cluster. Each scene yields the node to diagnose."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final

from clusters import GaleraCluster
from clusters.galera import SERVER
from incidents.lab import Incident
from waiting import until
from workloads.clients import Clients, repeating
from workloads.crowd import Crowd
from workloads.late_replies import late_replies
from workloads.table_lock import table_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Commits do not wait for the disk, so that three nodes can share a test host. Each node has two applier
#: threads.
_OPTIONS: Final = ("--innodb-flush-log-at-trx-commit=0", "--wsrep-slave-threads=2")
#: Length of the receive queue at which a node pauses the others. Galera multiplies it by the square root of
#: the number of nodes.
_LIMIT: Final = 64
_PROVIDER: Final = (f"gcs.fc_limit={_LIMIT}",)
_WRITERS: Final = 6
#: Changes per second of all writers together; the nodes can apply far more.
_RATE: Final = 300
#: Changes per second: so few that commits hardly ever wait, unless the other nodes reply late.
_FEW: Final = 10
#: Number of writers on each of two nodes. The writers change rows without pausing.
_STORM: Final = 3
_ROWS: Final = 10_000
#: Number of rows that the DDL copies. It takes about a millisecond to compute the new column of each row.
_COPIED: Final = 20_000
_DDL: Final = (
    "ALTER TABLE copied ADD COLUMN h CHAR(128) AS (SHA2(REPEAT(pad, 200), 512)) STORED, ALGORITHM=COPY"
)
_WITHIN_S: Final = 60


@contextmanager
def _cluster(first: Server) -> Iterator[GaleraCluster]:
    """Start a cluster with the identical tables ``stock`` and ``spare``, and the larger table ``copied``."""
    with GaleraCluster(first, _PROVIDER) as cluster:
        columns = "(a INT PRIMARY KEY, b INT, pad VARCHAR(2100)) ENGINE=InnoDB"
        rows = "SELECT seq, 0, REPEAT('x', 2000) FROM seq_1_to_"
        first.sql(
            "CREATE DATABASE shop",
            "USE shop",
            f"CREATE TABLE stock {columns}",
            f"INSERT INTO stock SELECT seq, 0, '' FROM seq_1_to_{_ROWS}",
            f"CREATE TABLE spare {columns}",
            f"INSERT INTO spare SELECT seq, 0, '' FROM seq_1_to_{_ROWS}",
            f"CREATE TABLE copied {columns}",
            f"INSERT INTO copied {rows}{_COPIED}",
        )
        cluster.wait_for_rows("shop", "copied", _COPIED)
        yield cluster


def _writers(
    node: Server, table: str = "stock", rows: int = _ROWS, rate: int = _RATE, count: int = _WRITERS
) -> Clients:
    """Change random rows of a table; retry transactions that were rolled back because of a conflict."""
    script = repeating([f"UPDATE {table} SET b = b + 1 WHERE a = $R"], rows)
    return Clients(node, count, "shop", [*script, f"--rate={rate}", "--mysql-ignore-errors=1213"])


def _until_writing(cluster: GaleraCluster, rate: int = _RATE) -> None:
    """Return once the first node's clients have committed transactions for about a second."""
    first = cluster.nodes[0]
    begin = int(cluster.status(first, "local_commits"))
    until(lambda: int(cluster.status(first, "local_commits")) > begin + rate, within_s=_WITHIN_S)


@contextmanager
def _locked(first: Server, diagnosed: int) -> Iterator[Server]:
    """Block the appliers of the last node with LOCK TABLES, until it pauses the cluster."""
    with _cluster(first) as cluster, _writers(first), table_lock(cluster.nodes[-1], "shop", "stock"):
        until(lambda: _paused(cluster), within_s=_WITHIN_S)
        yield cluster.nodes[diagnosed]


def _paused(cluster: GaleraCluster) -> bool:
    return cluster.status(cluster.nodes[0], "flow_control_active") == "true" and _queue(cluster) >= _LIMIT


def _queue(cluster: GaleraCluster) -> int:
    return int(cluster.status(cluster.nodes[-1], "local_recv_queue"))


@contextmanager
def _unlocked(first: Server, diagnosed: int) -> Iterator[Server]:
    """Run the same load as ``_locked``, but lock the table only for a moment."""
    with _cluster(first) as cluster:
        with table_lock(cluster.nodes[-1], "shop", "stock"):
            pass
        with _writers(first):
            _until_writing(cluster)
            yield cluster.nodes[diagnosed]


@contextmanager
def _conflicts(first: Server, tables: tuple[str, str], rows: int) -> Iterator[Server]:
    """Change the first rows of a table on each of two nodes; ``tables`` names the table of each node."""
    with _cluster(first) as cluster, ExitStack() as stack:
        for node, table in zip(cluster.nodes, tables, strict=False):
            stack.enter_context(_writers(node, table, rows, rate=0, count=_STORM))
        _until_writing(cluster)
        yield first


@contextmanager
def _ddl(first: Server, *, running: bool) -> Iterator[Server]:
    """Write on the first node; if ``running``, run DDL on another table on the second node meanwhile."""
    with _cluster(first) as cluster, _writers(first), Crowd(cluster.nodes[1], 1, "shop") as other:
        if running:
            other.send(_DDL)
            until(lambda: _waiting(first) == _WRITERS, within_s=_WITHIN_S)
        else:
            _until_writing(cluster)
        yield first


@contextmanager
def _replies(first: Server, *, late: bool) -> Iterator[Server]:
    """Write on the first node, and let the other nodes reply late or in time."""
    with _cluster(first) as cluster, _writers(first, rate=_FEW):
        _until_writing(cluster, _FEW)
        with late_replies(cluster.nodes[1:]) if late else nullcontext():
            yield first


def _waiting(node: Server) -> int:
    [(count,)] = node.sql(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST"
        " WHERE DB = 'shop' AND STATE = 'Waiting for certification' AND TIME_MS > 500"
    )
    return int(count)


INCIDENTS = (
    Incident(
        "galera-flow-control-writer",
        SERVER,
        "galera_flow_control",
        partial(_locked, diagnosed=0),
        partial(_unlocked, diagnosed=0),
        options=_OPTIONS,
        what="LOCK TABLES on another node blocks its appliers, and flow control pauses the writers",
    ),
    Incident(
        "galera-flow-control-slow",
        SERVER,
        "galera_slow_node",
        partial(_locked, diagnosed=-1),
        partial(_unlocked, diagnosed=-1),
        options=_OPTIONS,
        what="LOCK TABLES on this node blocks its appliers, so that flow control pauses all other nodes",
    ),
    Incident(
        "galera-certification",
        SERVER,
        "galera_certification",
        partial(_conflicts, tables=("stock", "stock"), rows=2),
        partial(_conflicts, tables=("stock", "spare"), rows=_ROWS),
        options=_OPTIONS,
        what="two nodes change the same two rows of a table",
    ),
    Incident(
        "galera-toi",
        SERVER,
        "galera_toi",
        partial(_ddl, running=True),
        partial(_ddl, running=False),
        options=_OPTIONS,
        what="an ALTER TABLE from another node runs on all nodes, and writes to other tables wait for it",
    ),
    Incident(
        "galera-late-replies",
        SERVER,
        "galera_replication",
        partial(_replies, late=True),
        partial(_replies, late=False),
        options=_OPTIONS,
        what="the other nodes are stopped (SIGSTOP) for 1.5 s at a time, and each commit waits for them",
    ),
)
