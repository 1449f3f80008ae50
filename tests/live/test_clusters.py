"""Test `stacks` and `diagnose`, with the account of packaging/account.sql, on each node of a cluster."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from clusters import GaleraCluster, ReplicationGroup, galera, group_replication
from install.test_account import PASSWORD, statements
from safety.command import innoscope
from scale import long
from servers import Server
from waiting import until
from workloads.clients import Clients, repeating

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CLUSTERS = {galera.SERVER: GaleraCluster, group_replication.SERVER: ReplicationGroup}
OPTIONS = ("--innodb-flush-log-at-trx-commit=0",)
FLOOR = 0.995
SNAPSHOTS = 40
SECONDS = 5
CALM, FOUND = 0, 18
ROWS = 1000
#: Findings that mean that a node or the whole cluster has a problem.
STALLS = {
    "galera_flow_control", "galera_slow_node", "galera_certification", "galera_toi", "group_replication_wait",
    "unexplained",
}  # fmt: skip

pytestmark = long("tests/unit/test_findings_clusters.py tests the rules, with synthetic evidence")


@contextmanager
def _busy(name: str) -> Iterator[list[Server]]:
    """Create a table on a cluster, wait until all nodes have it, and run four writers on the first node."""
    with Server(name, options=OPTIONS) as first, CLUSTERS[name](first) as cluster:
        rows = ", ".join(f"({row}, 0)" for row in range(1, ROWS + 1))
        first.sql(
            *statements(PASSWORD),
            "CREATE DATABASE shop",
            "CREATE TABLE shop.stock (a INT PRIMARY KEY, b INT)",
            f"INSERT INTO shop.stock VALUES {rows}",
        )
        until(lambda: all(_has_table(node) for node in cluster.nodes))
        script = [*repeating(["UPDATE stock SET b = b + 1 WHERE a = $R"], ROWS), "--rate=200"]
        with Clients(first, 4, "shop", script) as clients:
            until(lambda: first.sql("SELECT SUM(b) >= 200 FROM shop.stock") == [(1,)])
            yield cluster.nodes
            clients.check()


def _has_table(node: Server) -> bool:
    found = node.sql("SELECT 1 FROM information_schema.TABLES WHERE TABLE_NAME = 'stock'")
    return bool(found) and node.sql("SELECT COUNT(*) FROM shop.stock") == [(ROWS,)]


def _dumps(node: Server) -> list[dict[str, Any]]:
    done = innoscope("stacks", "--pid", node.pid, "--json", "--count", SNAPSHOTS, "--interval", 0.05)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def _diagnosed(node: Server, option_file: Path) -> dict[str, Any]:
    done = innoscope(
        "diagnose", "--pid", node.pid, "--seconds", SECONDS, "--json", "--defaults-file", option_file
    )
    assert done.returncode in (CALM, FOUND), done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.mark.parametrize("name", CLUSTERS)
def test_stacks_are_complete_and_diagnose_is_calm_on_each_node(name: str, tmp_path: Path) -> None:
    option_file = tmp_path / "my.cnf"
    option_file.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    option_file.chmod(0o600)
    with _busy(name) as nodes:
        for node in nodes:
            tally: Counter[str] = Counter()
            for dump in _dumps(node):
                tally.update(dump["tally"])
            at_rest = tally["threads"] - tally["on_cpu"] - tally["stale"]
            assert tally["exact"] >= FLOOR * at_rest, tally

            record = _diagnosed(node, option_file)
            assert not STALLS & {finding["name"] for finding in record["findings"]}, record
            unknown = json.dumps(record["cannot_tell"])
            assert "galera" not in unknown
            assert "group_replication" not in unknown
