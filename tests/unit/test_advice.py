"""Advice names only settings that the server has. tests/live/test_settings.py checks this on real servers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from innoscope.common.data import catalog_path, folder
from innoscope.diagnose import advice
from innoscope.diagnose.rules import PLACE, default_rules
from innoscope.diagnose.verdict import judge
from innoscope.sampling.activities import default_activities
from innoscope.sampling.classify import default_classifier
from unit.evidence import evidence

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS = [
    {"flavour": flavour, "version": version}
    for flavour, version in (
        ("mysql", "5.5.9"), ("mysql", "5.6.24"), ("mysql", "5.7.22"), ("mysql", "8.0.31"), ("mysql", "8.4.6"),
        ("mysql", "9.7.4-2"), ("mariadb", "10.5.23-MariaDB"), ("mariadb", "10.11.19-MariaDB"),
        ("mariadb", "11.4.5-MariaDB"),
    )
]  # fmt: skip
#: Prefixes of settings. A word that begins with one of them is either a setting or listed in OTHERS.
PREFIXES = (
    "innodb_", "binlog_", "sync_", "lock_wait_t", "slave_", "replica_", "rpl_", "wsrep_",
    "group_replication_", "max_", "sql_", "super_", "read_only", "query_", "skip_", "table_open_cache",
    "thread_pool_", "tmp_", "extra_",
)  # fmt: skip
#: Words with these prefixes that are not settings: status variables, wait classes, metrics and functions.
OTHERS = {
    "wsrep_local_recv_queue", "wsrep_evs_repl_latency", "wsrep_local_cert_failures", "wsrep_local_bf_aborts",
    "wsrep_flow_control_paused_ns", "innodb_queue", "innodb_table_monitor", "sync_array_wait_event",
    "group_replication_wait", "lock_wait_timeout_thread", "max_over_time", "thread_pool_stuck", "sql_up",
    "thread_pool_threads", "innodb_lock_waits", "lock_wait_timeouts", "group_replication_commit", "tmp_spill",
    "wsrep_cluster_status", "wsrep_last_committed", "wsrep_local_state_comment", "wsrep_ready",
}  # fmt: skip
VERSION = re.compile(r"MySQL|MariaDB|\b(?:5|8|9|10|11)\.\d+")


def _shown(server: dict[str, str]) -> Iterator[tuple[str, str]]:
    for rule in default_rules():
        for line in advice.lines(rule.do, server):
            yield rule.name, line


def _is_setting(word: str) -> bool:
    return word.startswith(PREFIXES) and word not in OTHERS


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server["version"])
def test_each_finding_has_advice_on_each_server(server: dict[str, str]) -> None:
    # MySQL 5.5.9 has no random read-ahead.
    impossible = {"random_read_ahead"} if server["version"] == "5.5.9" else set()

    assert {name for name, _ in _shown(server)} == {rule.name for rule in default_rules()} - impossible


def test_each_setting_in_the_texts_of_findings_is_declared() -> None:
    for rule in default_rules():
        for text in rule.texts:
            named = {word for word in advice.words(PLACE.sub("", text)) if _is_setting(word)}
            named -= {*default_classifier().catalog.classes, *default_activities()}
            assert named <= advice.settings().keys(), rule.name


def test_each_declared_setting_is_named_somewhere() -> None:
    pages = [page.read_text() for page in folder("runbooks").glob("*.md")]
    texts = [text for rule in default_rules() for text in rule.texts]
    named = {word for text in (*texts, *pages, *_alerts()) for word in advice.words(text)}

    assert advice.settings().keys() - named == set()


@pytest.mark.parametrize(
    ("finding", "setting", "versions"),
    [
        ("commit_fsync", "binlog_group_commit_sync_delay", {"5.7.22", "8.0.31", "8.4.6", "9.7.4-2"}),
        ("commit_fsync", "binlog_commit_wait_usec", {"10.5.23", "10.11.19", "11.4.5"}),
        ("latch_contention", "innodb_thread_concurrency",
         {"5.5.9", "5.6.24", "5.7.22", "8.0.31", "8.4.6", "9.7.4-2"}),
        ("redo_too_small", "innodb_redo_log_capacity", {"8.0.31", "8.4.6", "9.7.4-2"}),
        ("redo_too_small", "innodb_log_file_size",
         {"5.5.9", "5.6.24", "5.7.22", "10.5.23", "10.11.19", "11.4.5"}),
        ("doublewrite", "innodb_doublewrite", {"11.4.5"}),
        ("history_list", "innodb_max_purge_lag_delay",
         {"5.6.24", "5.7.22", "8.0.31", "8.4.6", "9.7.4-2", "10.5.23", "10.11.19", "11.4.5"}),
        ("free_pages", "innodb_lru_scan_depth",
         {"5.6.24", "5.7.22", "8.0.31", "8.4.6", "9.7.4-2", "10.5.23", "10.11.19", "11.4.5"}),
    ],
)  # fmt: skip
def test_advice_is_shown_only_where_its_setting_works(finding: str, setting: str, versions: set[str]) -> None:
    shown = {
        server["version"].removesuffix("-MariaDB")
        for server in SERVERS
        for name, line in _shown(server)
        if name == finding and setting in advice.words(line)
    }

    assert shown == versions


def test_a_report_omits_advice_and_toggles_of_other_servers() -> None:
    threads = {"mutex_wait": 9, "on_cpu": 1}
    old = judge(replace(evidence(threads), server=SERVERS[0])).findings[0]
    new = judge(replace(evidence(threads), server=SERVERS[-1])).findings[0]

    assert old.name == new.name == "latch_contention"
    assert any("innodb_thread_concurrency" in line for line in old.do)
    assert not any("innodb_thread_concurrency" in line for line in new.do)
    assert "thread_concurrency" in old.toggles
    assert "thread_concurrency" not in new.toggles


def test_an_unknown_version_gets_only_general_advice() -> None:
    for _, line in _shown({"flavour": "mysql", "version": ""}):
        settings = [advice.settings()[word] for word in advice.words(line) if word in advice.settings()]
        assert not any(setting.ranges for setting in settings), line


def _alerts() -> list[str]:
    groups = yaml.safe_load((Path(__file__).parents[2] / "dashboards/alerts/alerts.yaml").read_text())[
        "groups"
    ]
    return [
        text for group in groups for rule in group["rules"] for text in rule.get("annotations", {}).values()
    ]


def _paragraphs() -> Iterator[tuple[str, str]]:
    """Yield the runbooks' paragraphs and list items, and the alerts' texts, each with its source."""
    for page in sorted(folder("runbooks").glob("*.md")):
        for part in re.split(r"\n\s*\n|\n(?=- )", page.read_text()):
            yield page.stem, part
    for text in _alerts():
        yield "alerts", text


def test_runbooks_and_alerts_say_which_servers_have_a_setting() -> None:
    """Check that a paragraph about a setting that some servers lack also names a version or a product."""
    for source, part in _paragraphs():
        words = {word for word in advice.words(part) if _is_setting(word)}
        assert words - {*default_classifier().catalog.classes} <= advice.settings().keys(), (source, part)
        limited = {word for word in words & advice.settings().keys() if advice.settings()[word].ranges}
        assert not limited or VERSION.search(part), (source, limited)


def test_toggles_set_only_settings_that_their_servers_have() -> None:
    toggles = yaml.safe_load(catalog_path("toggles.yaml").read_text())["toggles"]
    for name, toggle in toggles.items():
        for entry in toggle["servers"]:
            flavour = "mysql" if "mysql" in entry else "mariadb"
            for backend in entry.get("backends", ()):
                for setting in backend.get("sql", {}):
                    known = advice.settings().get(setting)
                    if known is None or not known.ranges:
                        continue
                    assert flavour in known.ranges, (name, setting)
