"""Test that every query of every dashboard has data in a real Prometheus server."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import grafana
from backfill import JOB, backfill
from innoscope.metrics.registry import default
from live.dashboard_scene import BUSY_NAME, DOWN_NAME, OTHER_NAME, scene
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from grafana import Target
    from prometheus import Prometheus

INTERVAL = "8s"
#: Maximum seconds until the load has changed every metric.
_PATIENCE_S = 60
#: The backfilled series end this many seconds before the scene begins.
EARLIER_S = 3 * 3600

#: Queries without data in this scene, with the reason. All of them have data in the backfilled series.
NOT_HERE = {
    f"innoscope-replication / {panel} / {ref}": reason
    for reason, panels in {
        "only if sql.heartbeat_table is set": {"Lag by heartbeat": "A"},
        "only with semisynchronous replication": {
            "Semisynchronous": "A", "Replicas that acknowledge": "A", "Commits without acknowledgment": "A",
        },
        "only on members of a replication group": {
            "Group member": "AB", "Members online": "A", "Transactions to apply": "A",
        },
        "only on nodes of a Galera cluster": {
            "Galera node": "AB", "Galera state": "A", "Nodes": "A", "Paused by flow control": "A",
            "Pauses": "AB", "Receive queue": "A", "Commits and conflicts": "ABC",
        },
    }.items()
    for panel, refs in panels.items()
    for ref in refs
}  # fmt: skip
#: Queries without data when only the busy server is selected, with the reason; the other server has data.
NOT_OF_BUSY = {
    "innoscope-contention / Deadlocks / A": "MySQL 5.6 has no function to probe and no counter of deadlocks"
}
#: Metrics that none of the scene's servers exports, with the reason.
NOT_EXPORTED = {
    "innodb_status": "off by default, and no option of the sensor turns it on",
    "innodb_variable": "off by default, and no option of the sensor turns it on",
    **dict.fromkeys(
        {metric.name for metric in default() if metric.name.startswith("galera_")},
        "only on nodes of a Galera cluster (tests/live/test_clusters.py, test_state.py)",
    ),
    **dict.fromkeys(
        {metric.name for metric in default() if metric.name.startswith("group_")},
        "only on members of a replication group (tests/live/test_state.py)",
    ),
    **dict.fromkeys(
        {metric.name for metric in default() if metric.name.startswith("semisync_")},
        "only with semisynchronous replication",
    ),
    "replication_heartbeat_lag_seconds": "only if sql.heartbeat_table is set (tests/live/test_state.py)",
    "super_read_only": "MySQL 5.7.8 and newer",
    **dict.fromkeys(
        (
            "flush_average_pages",
            "flush_neighbor_batches",
            "flush_neighbor_pages",
            "flush_recommended_pages",
            "master_task_seconds",
            "redo_average_bytes",
        ),
        "only if an administrator enables InnoDB's counters (innodb_monitor_enable)",
    ),
}


@dataclass(frozen=True)
class Seen:
    """A Prometheus server, and the Unix time from which it has data about the servers under load.

    The backfilled series end at ``backfilled``.
    """

    prometheus: Prometheus
    began: float
    backfilled: int

    def empty(self, targets: Iterable[Target], expected: Collection[str], **chosen: str) -> set[str]:
        """Return the queries without data as soon as all of them are ``expected``, or after a timeout."""
        left = list(targets)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            left = [target for target in left if not self._has_data(target, job="innoscope", **chosen)]
            if {str(target) for target in left} <= set(expected) or time.monotonic() > deadline:
                return {str(target) for target in left}
            time.sleep(1)  # until the next scrape

    def missing_metrics(self, expected: Collection[str]) -> set[str]:
        """Return the metrics without series as soon as all of them are ``expected``, or after a timeout.

        An expensive probe is attached for only a part of each cycle, and some metrics have no series until
        the probe has counted something.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            names = {one["metric"]["__name__"] for one in self.lately('{job="innoscope"}')}
            missing = {
                metric.name
                for metric in default()
                if metric.exported + ("_bucket" if metric.kind == "histogram" else "") not in names
            }
            if missing <= set(expected) or time.monotonic() > deadline:
                return missing
            time.sleep(1)  # until the next scrape

    def lately(self, selector: str) -> list[dict[str, Any]]:
        """Return the series with their last values, even if the last scrape was late."""
        return self.prometheus.instant(f"last_over_time({selector}[1m])", time.time())

    def until_found(self, query: str) -> list[dict[str, Any]]:
        """Return the result of a query as soon as there is one.

        Until then, the last scrape may have been late, or the incident may still be in progress.
        """
        return until(
            lambda: self.prometheus.instant(query, time.time()),
            lambda: f"no result: {query}",
            within_s=_PATIENCE_S,
            every_s=1,
        )

    def _has_data(self, target: Target, **chosen: str) -> bool:
        """Return whether the panel would draw something. NaN is not drawn."""
        query = grafana.filled(target.expr, interval=INTERVAL, **chosen)
        if target.instant:
            pairs = [one["value"] for one in self.prometheus.instant(query, time.time())]
        else:
            found = self.prometheus.range(query, self.began, time.time(), 1)
            pairs = [pair for one in found for pair in one["values"]]
        return any(text != "NaN" for _, text in pairs)


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="innoscope-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the agent runs as nobody, and reads the status of changes there
        patch.setenv("INNOSCOPE_RUN", str(folder))
        backfilled = int(time.time()) - EARLIER_S
        backfill(folder, backfilled)
        with scene(folder) as prometheus:
            yield Seen(prometheus, time.time(), backfilled)


def test_every_query_has_data(seen: Seen) -> None:
    assert seen.empty(grafana.targets(), NOT_HERE) == NOT_HERE.keys()


def test_queries_of_one_server_have_data_when_it_is_selected(seen: Seen) -> None:
    """Check that the data do not come from the other servers in the scene."""
    boards = tuple(f"innoscope-{name}" for name in ("server", "dirty-page", "contention", "replication"))
    targets = [target for target in grafana.targets() if target.dashboard in boards]
    expected = {query for query in (*NOT_HERE, *NOT_OF_BUSY) if query.startswith(boards)}

    assert seen.empty(targets, expected, server=BUSY_NAME) == expected


def test_every_query_has_data_in_the_backfilled_series(seen: Seen) -> None:
    earlier = seen.backfilled - 120
    for target in grafana.targets():
        if "server:" in target.expr or "instance:" in target.expr or "server_" in target.expr:
            continue  # recording rules have no data from before Prometheus started
        query = grafana.filled(target.expr, interval="1m", job=JOB)
        found = [float(one["value"][1]) for one in seen.prometheus.instant(query, earlier)]
        assert found, f"{target}: {query}"
        assert all(value == value for value in found), f"{target}: NaN: {query}"


def test_every_metric_is_exported_by_one_of_the_servers(seen: Seen) -> None:
    assert seen.missing_metrics(NOT_EXPORTED) == NOT_EXPORTED.keys()
    assert all(len(reason) > 20 for reason in NOT_EXPORTED.values())


def test_variables_list_jobs_instances_and_servers(seen: Seen) -> None:
    for board in grafana.dashboards().values():
        offered = {
            one["name"]: _offered(seen, one["query"]["query"])
            for one in board["templating"]["list"]
            if one["type"] == "query"
        }

        assert "innoscope" in offered["job"]
        assert any(instance.startswith("127.0.0.1:") for instance in offered["instance"])
        assert {BUSY_NAME, OTHER_NAME} <= offered["server"]


def _offered(seen: Seen, definition: str) -> set[str]:
    """Evaluate ``label_values(series, label)`` as Grafana does."""
    inner, _, label = definition.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    found: list[dict[str, Any]] = seen.lately(grafana.filled(inner))
    return {one["metric"][label] for one in found}


def test_annotations_mark_the_start_the_toggle_and_the_incident(seen: Seen) -> None:
    [board] = [one for one in grafana.dashboards().values() if one["uid"] == "innoscope-server"]
    marks = {one["name"]: grafana.filled(one["target"]["expr"], job="innoscope", server=BUSY_NAME)
             for one in board["annotations"]["list"]}  # fmt: skip
    for name in ("Restarts", "Toggles", "Incidents"):
        [found] = seen.until_found(marks[name])
        assert time.time() - 600 < float(found["value"][1]) / 1000 < time.time(), name


def test_fleet_dashboard_shows_the_unreachable_server(seen: Seen) -> None:
    failing = seen.lately(f'innoscope_sql_up{{server="{DOWN_NAME}"}}')

    assert [one["value"][1] for one in failing] == ["0"]
    states = seen.lately(f'server:innoscope_state:score{{server="{DOWN_NAME}"}}')
    assert [one["value"][1] for one in states] == ["220"]
    table = next(
        panel for panel in grafana.panels(grafana.dashboards()["innoscope-fleet"]) if panel["type"] == "table"
    )
    assert [one["displayName"] for one in table["options"]["sortBy"]] == ["state", "stalled threads"]


def test_recording_rules_are_healthy(seen: Seen) -> None:
    groups = seen.prometheus.get("/api/v1/rules")["groups"]
    bad = {rule["name"]: rule.get("lastError") for group in groups for rule in group["rules"]
           if rule["health"] != "ok"}  # fmt: skip
    written = yaml.safe_load((grafana.FOLDER.parent / "alerts/recording.yaml").read_text())["groups"]

    assert not bad
    assert len(groups) == len(written)
