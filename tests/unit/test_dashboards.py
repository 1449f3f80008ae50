"""The dashboards match their generator, use existing metrics and suggest valid next steps."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import grafana
import promql
from generate import ALL, dashboards
from generate.__main__ import MIXIN_RULES, mixin_rules, text
from innoscope.common import metrics_file
from innoscope.metrics.registry import PREFIX, default
from unit.command_lines import check_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from generate.model import Step

ROOT = Path(__file__).parents[2]
RULES = ROOT / "dashboards" / "alerts" / "recording.yaml"

#: Series that Prometheus adds to each scrape.
PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}


def test_committed_files_match_the_generator() -> None:
    committed = {path.name: path.read_text() for path in grafana.FOLDER.glob("*.json")}

    assert committed == {name: text(one) for name, one in dashboards().items()}, "run: make dashboards"
    assert MIXIN_RULES.read_text() == text(mixin_rules()), "run: make dashboards"


def rules() -> dict[str, str]:
    """Return the queries of the recording rules by name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def used(expr: str) -> Iterator[promql.Use]:
    """Yield the agent's series that a query uses, directly or through recording rules."""
    for use in promql.uses(expr):
        if ":" in use.name:
            yield from used(rules()[use.name])
        else:
            yield use


@cache
def all_uses() -> list[promql.Use]:
    return [use for target in grafana.targets() for use in used(grafana.filled(target.expr))]


def metric_of(name: str) -> Any:
    """Return the declared metric of a series."""
    bare = name.removeprefix(PREFIX)
    for suffix in ("_total", "_bucket", "_sum", "_count", ""):
        found = bare.removesuffix(suffix)
        if found in default() and suffixed(found, suffix):
            return default()[found]
    raise AssertionError(f"{name} is not declared in metrics.yaml")


def suffixed(name: str, suffix: str) -> bool:
    kinds = {"_total": "counter", "_bucket": "histogram", "_sum": "histogram", "_count": "histogram"}
    return kinds.get(suffix) == default()[name].kind or (
        not suffix and default()[name].kind in {"gauge", "info"}
    )


def test_metrics_and_labels_in_queries_are_declared() -> None:
    for use in all_uses():
        if use.name in PROMETHEUS:
            continue
        metric = metric_of(use.name)
        known = {label.name for label in metric.labels} | {"job", "instance", "le"}
        known |= set() if metric.own else {"server"}

        assert use.labels <= known, f"{use.name}: {use.labels - known}"
        for label in metric.labels:
            wanted = use.values.get(label.name, set())
            assert label.values is None or wanted <= set(label.values), f"{use.name}: {wanted}"


def test_wait_classes_in_queries_exist() -> None:
    waits = yaml.safe_load((ROOT / "probes/catalog/waits.yaml").read_text())["classes"]
    wanted = {value for use in all_uses() for value in use.values.get("wait", set())}

    assert wanted <= set(waits)


def test_scans_of_redo_are_not_converted_to_bytes() -> None:
    """How much one call scans depends on the page size and, since MariaDB 10.8, on the size of the log."""
    found = [target.expr for target in grafana.targets() if "recovery_scans" in target.expr]

    assert found
    assert not any("*" in expr for expr in found)


def test_every_metric_is_on_a_dashboard_or_has_a_reason_why_not() -> None:
    declared = metrics_file.installed()
    reasons = {name: one.no_panel for name, one in declared.items() if one.no_panel is not None}
    shown = {metric_of(use.name).name for use in all_uses() if use.name not in PROMETHEUS}

    assert declared.keys() - shown - reasons.keys() == set(), "add a panel, or no_panel in metrics.yaml"
    assert shown & reasons.keys() == set(), "on a dashboard in spite of no_panel"
    assert all(len(reason) > 20 for reason in reasons.values())


def steps() -> list[tuple[str, Step]]:
    return [
        (f"{board.uid} / {panel.title}", step)
        for board in ALL
        for row in board.rows
        for panel in row.panels
        for step in panel.then
    ]


def test_next_steps_exist() -> None:
    boards = {board.uid for board in ALL}
    for where, step in steps():
        assert not step.dashboard or step.dashboard in boards, where
        assert not where.startswith(f"{step.dashboard} / "), f"{where} leads to itself"
        assert not step.page or (ROOT / "docs" / step.page).exists(), f"{where}: docs/{step.page}"


COMMANDS = sorted({step.command for _, step in steps() if step.command.startswith("innoscope ")})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_to_run_next_are_valid(command: str) -> None:
    check_command(command.split()[1:])


def test_other_commands_are_about_our_units() -> None:
    others = {step.command for _, step in steps() if step.command and step.command not in COMMANDS}
    units = {path.stem for path in (ROOT / "packaging/systemd").glob("*.service")}

    assert all(command.split()[0] in {"systemctl", "journalctl"} for command in others)
    assert all(command.split()[-1] in units for command in others)


def test_provisioning_matches_the_documentation() -> None:
    folder = grafana.FOLDER / "provisioning"
    source = yaml.safe_load((folder / "datasources/innoscope.yaml").read_text())["datasources"][0]
    provider = yaml.safe_load((folder / "dashboards/innoscope.yaml").read_text())["providers"][0]
    guide = (ROOT / "docs/dashboards.md").read_text()

    assert source["type"] == "prometheus"
    assert provider["options"]["path"] in guide
    assert json.dumps(source["jsonData"]["timeInterval"]).strip('"') in guide
