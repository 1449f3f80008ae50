"""Stacks and diagnose on each node of a cluster of three."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusters import GaleraCluster, ReplicationGroup, galera, group_replication
from incidents.lab import diagnose
from scale import long
from servers import Server
from waiting import until
from workloads.clients import Clients, repeating

if TYPE_CHECKING:
    from collections.abc import Iterator

CLUSTERS = {galera.SERVER: GaleraCluster, group_replication.SERVER: ReplicationGroup}
OPTIONS = ("--innodb-flush-log-at-trx-commit=0",)
FLOOR = 0.995
SNAPSHOTS = 40
ROWS = 1000
#: Findings that mean that a node, or the cluster, is broken.
STALLS = {
    "galera_flow_control", "galera_slow_node", "galera_certification", "galera_toi", "group_replication_wait",
    "unexplained",
}  # fmt: skip

pytestmark = long("tests/unit has the rules; a cluster takes three servers")


@contextmanager
def _busy(name: str) -> Iterator[list[Server]]:
    """Run four writers on the first node of a cluster, and wait until the others have the data."""
    with Server(name, options=OPTIONS) as first, CLUSTERS[name](first) as cluster:
        rows = ", ".join(f"({row}, 0)" for row in range(1, ROWS + 1))
        first.sql(
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
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    options = ["--json", "--count", str(SNAPSHOTS), "--interval", "0.05"]
    done = subprocess.run(
        [innoscope, "stacks", "--pid", str(node.pid), *options],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", CLUSTERS)
def test_stacks_are_complete_and_diagnose_is_calm_on_each_node(name: str) -> None:
    with _busy(name) as nodes:
        for node in nodes:
            tally: Counter[str] = Counter()
            for dump in _dumps(node):
                tally.update(dump["tally"])
            at_rest = tally["threads"] - tally["on_cpu"] - tally["stale"]
            assert tally["exact"] >= FLOOR * at_rest, tally

            result = diagnose(node.pid)
            assert not STALLS & set(result.names), result.record
