"""Test that promtool and amtool accept the alert rules and the example configurations."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from alerting import ALERTS, tool

if TYPE_CHECKING:
    from pathlib import Path

TESTS = sorted((ALERTS / "tests").glob("*.yaml"))


def run(*command: object) -> str:
    """Run a tool that must succeed, and return its output."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_finds_no_problems_in_the_rules() -> None:
    files = ALERTS / "alerts.yaml", ALERTS / "recording.yaml"
    run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *files)
    run("promtool", "check", "config", ALERTS / "prometheus.yaml")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_unit_tests_of_the_rules_pass(path: Path) -> None:
    run("promtool", "test", "rules", path)


def test_alertmanager_accepts_the_sample_and_routes_by_severity() -> None:
    config = ALERTS / "alertmanager.yaml"
    run(tool("amtool"), "check-config", config)
    for labels, receiver in (
        (["alertname=InnoscopeFlushingStorm", "severity=critical"], "pager"),
        (["alertname=InnoscopeRowLockConvoy", "severity=warning"], "mail"),
        (["alertname=InnoscopeSeriesDropped", "severity=info"], "nobody"),
        (["alertname=SomebodyElses", "severity=critical"], "mail"),
    ):
        route = "config", "routes", "test", f"--config.file={config}", f"--verify.receivers={receiver}"
        run(tool("amtool"), *route, *labels)
