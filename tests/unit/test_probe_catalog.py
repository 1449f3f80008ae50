"""probes.yaml is consistent, and the loader rejects entries that could harm a server."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.data import folder
from innoscope.common.errors import BadFile
from innoscope.probes.catalog import LEAVE, default_catalog, load
from innoscope.probes.slots import default_slots

if TYPE_CHECKING:
    from pathlib import Path

_METRICS = yaml.safe_load((folder("catalog") / "metrics.yaml").read_text())["metrics"]


def test_every_probe_feeds_declared_metrics() -> None:
    for probe in default_catalog().probes.values():
        for metric in probe.feeds:
            assert "probes" in _METRICS[metric]["sources"], f"{probe.name} feeds {metric}"


def test_every_metric_whose_only_source_is_probes_is_fed() -> None:
    fed = {metric for probe in default_catalog().probes.values() for metric in probe.feeds}
    from_probes_only = {name for name, metric in _METRICS.items() if metric["sources"] == ["probes"]}
    assert {name for name in from_probes_only - fed if not name.startswith("probe_")} == set()


def test_every_return_probe_gives_a_reason_why_no_exception_crosses_it() -> None:
    catalog = default_catalog()
    for probe in catalog.probes.values():
        for site in probe.sites:
            if LEAVE in site.at and not site.absent:
                assert site.returns in catalog.safe, f"{probe.name} on {site.ranges}"


@pytest.mark.parametrize(
    "server",
    [
        "mysql 5.5.9",
        "mysql 5.6.24",
        "mysql 5.7.44",
        "mysql 8.0.11",
        "mysql 8.0.44",
        "mysql 8.4.6",
        "mysql 9.7.0",
        "mariadb 10.2.44",
        "mariadb 10.4.34",
        "mariadb 10.5.23",
        "mariadb 10.6.22",
        "mariadb 11.4.5",
        "mariadb 11.8.3",
    ],
)
def test_every_probe_has_an_entry_for_every_server(server: str) -> None:
    flavour, version = server.split()
    number = tuple(map(int, version.split(".")))
    for probe in default_catalog().probes.values():
        assert probe.site(flavour, number) is not None, f"{probe.name} has no entry for {server}"


def test_every_function_of_the_server_has_a_citation() -> None:
    for probe in default_catalog().probes.values():
        for site in probe.sites:
            needed = bool(site.functions or site.symbols) and not site.libraries
            assert bool(site.source) == needed, f"{probe.name}: {site.functions}"


@pytest.mark.parametrize(
    ("probe", "server", "functions"),
    [
        ("checkpoint", "mysql 5.7.44", ["log_checkpoint"]),
        ("checkpoint", "mysql 8.0.11", ["log_files_write_checkpoint"]),
        ("checkpoint", "mysql 8.0.29", ["log_files_write_checkpoint"]),
        ("checkpoint", "mysql 8.0.30", ["log_files_write_checkpoint_low"]),
        ("checkpoint", "mysql 8.4.10", ["log_files_write_checkpoint_low"]),
        ("doublewrite_batch", "mysql 8.0.19", ["buf_dblwr_flush_buffered_writes"]),
        ("doublewrite_batch", "mysql 8.0.20", ["Double_write::write_pages"]),
        ("deadlock_search", "mysql 8.0.17", ["DeadlockChecker::check_and_resolve"]),
        ("deadlock_search", "mysql 8.0.18", []),
        ("deadlock_found", "mysql 8.0.17", ["DeadlockChecker::notify"]),
        ("deadlock_found", "mysql 8.0.18", ["Deadlock_notifier::notify"]),
        ("flush_wait", "mysql 8.0.44", ["buf_flush_wait_batch_end", "buf_flush_await_no_flushing"]),
        ("row_lock_wait", "mariadb 10.2.44", ["lock_wait_suspend_thread"]),
        ("row_lock_wait", "mariadb 10.5.23", ["lock_wait_suspend_thread"]),
        ("row_lock_wait", "mariadb 10.6.0", ["lock_wait"]),
        ("latch_wait", "mariadb 10.5.23", ["sync_array_wait_event"]),
        ("page_flush", "mariadb 10.5.23", ["buf_flush_page"]),
        ("page_flush", "mariadb 11.8.3", ["buf_page_t::flush"]),
        ("redo_stall", "mariadb 10.4.34", ["log_check_margins"]),
    ],
)
def test_functions_of_servers_that_are_not_run(probe: str, server: str, functions: list[str]) -> None:
    flavour, version = server.split()
    site = default_catalog().probes[probe].site(flavour, tuple(map(int, version.split("."))))
    assert site is not None
    assert list(site.functions) == functions


def test_labels_are_values_of_the_metrics_label() -> None:
    slots = default_slots()
    known = {
        label
        for slot in (*slots.counters.values(), *slots.histograms.values())
        for label in slot.labels or ()
    }
    for probe in default_catalog().probes.values():
        for site in probe.sites:
            for value in site.values.values():
                constant = {value.label} if value.label is not None else set()
                assert constant | set(value.labels.values()) <= known, probe.name


def test_every_attached_function_has_its_program() -> None:
    text = "".join(path.read_text() for path in folder("uprobes").glob("*.bpf.c"))
    catalog = default_catalog()
    needed = {
        f"{probe.name}_{at}"
        for probe in catalog.probes.values()
        for site in probe.sites
        if not site.absent
        for at in site.at
    }
    for name in needed:
        assert f"int {name}(struct pt_regs *ctx)" in text, name


def test_metric_names_occur_literally_in_the_programs_that_feed_them() -> None:
    """Check that a search for a metric finds metrics.yaml, the probes that feed it, and their C code."""
    catalog = default_catalog()
    for probe in catalog.probes.values():
        text = (folder("uprobes") / catalog.families[probe.family].source).read_text()
        for metric in (*probe.feeds, *(metric for site in probe.sites for metric in site.feeds)):
            assert metric in _METRICS
            assert re.search(rf"(\b|SLOT_){metric}\b", text), f"{probe.name} feeds {metric}"
        for value in probe.values:
            assert f"{probe.name}_{value}(ctx)" in text


@pytest.mark.parametrize(
    ("metric", "server", "wanted"),
    [
        ("fsync_seconds", "mysql 5.6.24", ["fsync", "fdatasync"]),
        # In 5.5, page_flush is inlined, and flush_batch counts the pages. page_flush is listed nevertheless,
        # because its ``feeds`` apply to all versions.
        ("flushed_pages_by_thread", "mysql 5.5.9", ["flush_batch", "page_flush", "flush_lru_batch"]),
        ("flushed_pages_by_thread", "mariadb 11.4.5", ["page_flush", "flush_lru_batch"]),
        ("pages_of_a_book", "mysql 5.6.24", []),
        ("statement_seconds", "mysql 5.6.24", []),  # its family is off by default
    ],
)
def test_the_probes_that_feed_a_metric_are_listed(metric: str, server: str, wanted: list[str]) -> None:
    flavour, version = server.split()
    number = tuple(map(int, version.split(".")))
    found = default_catalog().feeding(frozenset({metric}), flavour, number)
    assert sorted(probe.name for probe in found) == sorted(wanted)


def _site(**values: Any) -> dict[str, Any]:
    return {"mysql": "5.5", "functions": ["f"], "values": values}


def _one_probe(**changes: Any) -> dict[str, Any]:
    probe = {
        "family": "flush", "at": ["enter"], "feeds": ["flushed_pages"], "values": ["v"],
        "sites": [{"mysql": "5.5+", "functions": ["f"]}],
    }  # fmt: skip
    family = {"source": "flush.bpf.c", "default": True, "answers": "x"}
    return {
        "version": 1,
        "known": {"mysql": "5.5-9.7"},
        "safe": {"c": "a C function"},
        "families": {"flush": family},
        "probes": {"p": probe | changes},
    }


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"at": ["enter", "leave"]}, r"sites\[0\]: .*no exception can cross"),
        ({"at": ["leave"], "returns": "hope"}, r"sites\[0\]: .*no exception can cross"),
        ({"sites": [{"mysql": "5.5", "functions": ["f"], "at": ["leave"]}]}, "no exception can cross"),
        ({"at": ["exit"]}, r"at\[0\]: Invalid enum value 'exit'"),
        ({"family": "nobody"}, ": unknown family nobody"),
        ({"weight": 0}, "weight: Expected `int` >= 1"),
        ({"limit": 0.5}, r"limit: Expected `int \| null`, got `float`"),
        ({"asks": ["nobody"]}, ": unknown probe nobody"),
        ({"name": "q"}, ": unknown field `name`"),
        ({"check": {"metric": "m"}}, "check: .*missing required field `counter`"),
        ({"sites": [{"mysql": "new", "functions": ["f"]}]}, r"sites\[0\].mysql: malformed version range"),
        ({"sites": [{"functions": ["f"]}]}, r"sites\[0\]: needs a version range"),
        ({"sites": [{"mysql": "5.5", "mariadb": "10.5"}]}, r"sites\[0\]: needs a version range"),
        ({"sites": [{"mysql": "5.5", "function": "f"}]}, r"sites\[0\]: .*unknown field `function`"),
        ({"sites": [_site(w={"arg": 1})]}, r"sites\[0\]: value 'w' is not among the probe's"),
        ({"sites": [_site(v={"register": 1})]}, r"sites\[0\].values.v: .*unknown field `register`"),
        ({"sites": [_site(v={"labels": {1: "a"}})]}, r"sites\[0\].values.v: needs exactly one of arg"),
        ({"sites": [_site(v={"arg": 1, "is": 1})]}, r"sites\[0\].values.v: needs exactly one of arg"),
        ({"sites": [_site(v={"arg": 6})]}, r"sites\[0\].values.v.arg: Expected `int` <= 5"),
        ({"sites": [_site(v={"result": 65})]}, r"sites\[0\].values.v.result: Expected `int` <= 64"),
        ({"sites": [_site(v={"is": 1, "bits": 8})]}, r"sites\[0\].values.v: bits requires arg"),
    ],
)
def test_an_invalid_probe_is_named(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "probes.yaml"
    path.write_text(yaml.safe_dump(_one_probe(**changes)))
    with pytest.raises(BadFile, match=rf"probes\.yaml(, line \d+)?: (probes\.)?p\W?.*{complaint}"):
        load(path)
