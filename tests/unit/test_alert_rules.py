"""The alert rules agree with promtool's tests, the runbooks, the metrics and the documentation.

tests/live/test_rule_tools.py runs promtool itself.
"""

from __future__ import annotations

import itertools
import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from alerting import ALERTS
from generate.links import linked
from innoscope.metrics import registry
from innoscope.sampling.classify import default_classifier
from unit.command_lines import check_command

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = ALERTS.parents[1]
RUNBOOKS = ALERTS.parent / "runbooks"
TESTS = sorted((ALERTS / "tests").glob("*.yaml"))
#: Alerts that fire when series are missing.
ON_ABSENCE = {"InnoscopeServerVanished", "InnoscopeNoAgents"}
#: The link to the agent's live page that each alert about a server contains.
FINDINGS = "http://{{ $labels.instance }}/#server={{ urlquery $labels.server }}&show=findings"
HEADINGS = [
    "What it means", "Why it happens", "How to confirm", "What to do now", "What to fix for good",
    "Why this threshold", "References",
]  # fmt: skip
_METRIC = re.compile(r"\b(?:[a-z_]+:)?innoscope_[a-z0-9_]+(?::[a-z0-9_]+)?")
_SELECTOR = re.compile(r"(innoscope_[a-z0-9_]+)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


@cache
def rules(name: str) -> dict[str, dict[str, Any]]:
    """Return the alerting and recording rules of a file, by name."""
    groups = yaml.safe_load((ALERTS / name).read_text())["groups"]
    return {rule.get("alert") or rule["record"]: rule for group in groups for rule in group["rules"]}


@cache
def entries() -> list[dict[str, Any]]:
    """Return all promtool tests of alerts."""
    return [test for path in TESTS for test in yaml.safe_load(path.read_text())["tests"]]


ALERT_NAMES = sorted(rules("alerts.yaml"))


def checks(alert: str) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each promtool test that checks an alert, with the checks of this alert."""
    for entry in entries():
        found = [check for check in entry.get("alert_rule_test", ()) if check["alertname"] == alert]
        if found:
            yield entry, found


def expected(check: dict[str, Any]) -> list[dict[str, str]]:
    return [one["exp_labels"] for one in check["exp_alerts"]]


def seconds(text: str) -> int:
    return sum(int(number) * {"s": 1, "m": 60}[unit] for number, unit in re.findall(r"(\d+)([ms])", text))


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_alert_fires_only_for_the_affected_server_and_resolves(alert: str) -> None:
    rule = rules("alerts.yaml")[alert]
    (entry, found) = next(
        (entry, found) for entry, found in checks(alert) if entry["name"].endswith("and resolves")
    )
    *waits, fires, resolves = found

    assert [labels for check in waits for labels in expected(check)] == []
    assert len(waits) == ("for" in rule), "the test must check that the alert is pending during `for`"
    assert len(expected(fires)) == 1
    assert expected(resolves) == []
    assert seconds(fires["eval_time"]) < seconds(resolves["eval_time"])
    if alert not in ON_ABSENCE:
        labels = expected(fires)[0]
        assert "sick" in labels.get("server", "") + labels["instance"]
        assert any("well" in one["series"] for one in entry["input_series"]), "no healthy server"


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_alert_fires_on_missing_series_only_if_it_is_about_absence(alert: str) -> None:
    words = "takes absence for the alarm" if alert in ON_ABSENCE else "says nothing without its series"
    found = [found for entry, found in checks(alert) if f"{alert} {words}" in entry["name"]]

    assert found
    if alert not in ON_ABSENCE:
        assert [labels for check in found[0] for labels in expected(check)] == []


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_alert_follows_the_conventions(alert: str) -> None:
    rule = rules("alerts.yaml")[alert]
    annotations = rule["annotations"]

    assert alert.startswith("Innoscope")
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    about_a_server = "$labels.server" in annotations["description"] and alert != "InnoscopeServerVanished"
    more = {"findings"} if about_a_server else set()
    assert annotations.keys() == {"summary", "description", "runbook_url", "dashboard_url"} | more
    if about_a_server:
        assert annotations["findings"] == FINDINGS
    if alert != "InnoscopeNoAgents":
        assert ("var-server={{ urlquery $labels.server }}" in annotations["dashboard_url"]) is (
            "$labels.server" in annotations["description"]
        )
    assert "{{" not in annotations["summary"]
    assert annotations["runbook_url"].endswith(f"/runbooks/{alert}")
    if alert != "InnoscopeNoAgents":
        assert "{{ $labels.instance }}" in annotations["runbook_url"]


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_dashboard_of_the_alert_exists(alert: str) -> None:
    url = rules("alerts.yaml")[alert]["annotations"]["dashboard_url"]
    uid = re.fullmatch(r"http://localhost:3000/d/([\w-]+)(\?.*)?", url)

    assert uid is not None
    assert (ALERTS.parent / "grafana" / f"{uid[1]}.json").is_file()


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_description_names_the_next_command(alert: str) -> None:
    description = rules("alerts.yaml")[alert]["annotations"]["description"].strip()
    command = re.search(r"Next, (?:on its host|on the host of Prometheus|with the file): (.+)$", description)

    assert command is not None
    words = shlex.split(command[1].removeprefix("sudo "))
    if words[0] == "innoscope":
        check_command(words[1:])
    assert words[0] in {"innoscope", "journalctl", "systemctl", "curl", "promtool"}


@pytest.mark.parametrize("agents", ["http", "https"])
def test_links_can_have_other_addresses(agents: str) -> None:
    grafana, runbooks = "https://grafana.example.net/", "https://runbooks.example.net/innoscope"
    text = linked((ALERTS / "alerts.yaml").read_text(), grafana, runbooks, agents)
    changed = {rule["alert"]: rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}

    assert changed.keys() == set(ALERT_NAMES)
    for name, rule in changed.items():
        annotations = rule["annotations"]
        assert annotations["runbook_url"] == f"{runbooks}/{name}"
        assert annotations["dashboard_url"].startswith("https://grafana.example.net/d/")
        assert annotations.get("findings", f"{agents}:").startswith(f"{agents}:")
        assert rule["expr"] == rules("alerts.yaml")[name]["expr"]
    served = linked((ALERTS / "alerts.yaml").read_text(), None, None, "https")
    assert 'runbook_url: "http:' not in served
    assert "runbook_url: 'http:" not in served


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_alert_has_a_runbook_with_its_rule(alert: str) -> None:
    rule = rules("alerts.yaml")[alert]
    text = (RUNBOOKS / f"{alert}.md").read_text()
    when = f"for {rule['for']}" if "for" in rule else "at once"

    assert text.startswith(
        f"# {alert}\n\n**{rule['labels']['severity']}**, {when}: {rule['annotations']['summary']}\n"
    )
    assert f"```promql\n{rule['expr'].strip()}\n```" in text
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert [one.removesuffix(" in InnoDB") for one in headings] == HEADINGS
    for link in re.findall(r"\]\((\w+\.md)\)", text):
        assert (RUNBOOKS / link).is_file()


def test_runbook_has_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == set(ALERT_NAMES)


def known_metrics() -> set[str]:
    found = set(rules("recording.yaml"))
    for metric in registry.default():
        found.add(metric.exported)
        if metric.kind == "histogram":
            found |= {metric.exported + suffix for suffix in ("_bucket", "_sum", "_count")}
    return found


def texts() -> dict[str, str]:
    """Return the contents of the rules, their tests and the runbooks, by path."""
    places = [*ALERTS.glob("*.yaml"), *TESTS, *RUNBOOKS.glob("*.md")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in places}


def test_metrics_that_are_named_exist() -> None:
    known = known_metrics()
    for place, text in texts().items():
        unknown = {name for name in _METRIC.findall(text) if name not in known}
        assert not unknown, f"{place}: {unknown}"


def label_values() -> dict[tuple[str, str], set[str]]:
    """Return the valid label values, by series and label, for labels with a fixed set of values."""
    waits = set(default_classifier().catalog.classes)
    found = {}
    for metric in registry.default():
        for label in metric.labels:
            values = waits if label.name == "wait" else set(label.values or ())
            if values:
                for suffix in ("", "_bucket", "_sum", "_count"):
                    found[metric.exported + suffix, label.name] = values
    return found


def test_label_values_that_are_named_exist() -> None:
    known = label_values()
    for place, text in texts().items():
        for metric, selector in _SELECTOR.findall(text):
            for label, values in _LABEL.findall(selector):
                unknown = set(values.split("|")) - known.get((metric, label), set(values.split("|")))
                assert not unknown, f"{place}: {metric}{{{label}}}: {unknown}"


def commands() -> list[tuple[str, list[str]]]:
    """Return the page and the arguments of each innoscope command in the runbooks."""
    found = []
    for page in RUNBOOKS.glob("*.md"):
        for line in re.findall(r"(?:^    |`)(?:sudo )?(innoscope [^`\n]*)", page.read_text(), re.MULTILINE):
            words = shlex.shlex(line, posix=True, punctuation_chars="|")  # stop at a comment or a pipe
            words.whitespace_split = True
            found.append((page.stem, list(itertools.takewhile(lambda word: word != "|", words))[1:]))
    return found


@pytest.mark.parametrize(("page", "words"), commands(), ids=str)
def test_commands_in_runbooks_are_valid(page: str, words: list[str]) -> None:
    del page
    if "…" not in words:
        check_command(words)


def test_inhibitions_name_existing_alerts() -> None:
    text = (ALERTS / "alertmanager.yaml").read_text()
    for operator, pattern in re.findall(r'alertname (=~|!~|!=|=) "([^"]+)"', text):
        fits = re.compile(pattern).fullmatch if "~" in operator else pattern.__eq__
        assert any(fits(name) for name in ALERT_NAMES), pattern


def test_table_in_the_documentation_matches_the_rules() -> None:
    rows = [
        f"| [{name}](../dashboards/runbooks/{name}.md) | {rule['labels']['severity']}"
        f" | {rule.get('for', '0')} | {rule['annotations']['summary'].removesuffix('.')} |"
        for name, rule in rules("alerts.yaml").items()
    ]
    text = (ROOT / "docs" / "alerts.md").read_text()

    assert [line for line in text.splitlines() if line.startswith("| [Innoscope")] == rows
