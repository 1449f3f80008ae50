"""Test that toggles on a cluster node warn of effects on other nodes, and do not make the node leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusters import CLUSTERS, server_of
from innoscope.toggles import catalog, engine
from live.changing import ROOT, Changer, other_value
from live.toggle_run import Run, run
from scale import long
from servers import Server, ensure_packages
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

WORDS = {"galera": "a node of a Galera cluster", "group-replication": "a member of a replication group"}
#: Toggles that affect the other nodes.
WARNING = {
    "adaptive_hash_index", "dirty_page_limit", "doublewrite", "flush_sync", "io_capacity", "purge_lag",
    "purge_lag_delay", "redo_size", "relaxed_durability", "semaphore_kill_time",
}  # fmt: skip

pytestmark = long("tests/unit/test_toggle_engine.py has the warning")


def _warned(changer: Changer, words: str) -> set[str]:
    """Return the toggles whose plan on this server has a warning that begins with ``words``."""
    found = set()
    for toggle in catalog.load().values():
        now = changer.now(toggle)
        if now is None:
            continue
        value = other_value(toggle, now)
        plan = engine.plan(changer.target, toggle.name, value, account=ROOT, deps=changer.deps)
        if any(one.startswith(f"this server is {words}: ") for one in plan.warnings):
            found.add(toggle.name)
    return found


@pytest.mark.parametrize("name", CLUSTERS)
def test_toggles_leave_the_node_in_its_cluster(name: str, tmp_path: Path) -> None:
    ensure_packages(["gdb"])
    with Server(server_of(name)) as first, CLUSTERS[name](first) as cluster:
        changer = Changer(first, tmp_path)
        here = {one.toggle for one in run(first, tmp_path) if isinstance(one, Run)}
        assert _warned(changer, WORDS[name]) == WARNING & here

        first.sql("CREATE DATABASE shop", "CREATE TABLE shop.t (a INT PRIMARY KEY)")
        first.sql("INSERT INTO shop.t VALUES (1)")
        until(lambda: all(map(_has_row, cluster.nodes)))


def _has_row(node: Server) -> bool:
    tables = node.sql("SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop'")
    return bool(tables) and node.sql("SELECT * FROM shop.t") == [(1,)]
