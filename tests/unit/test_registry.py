"""Declarations of metrics are validated, bounded and documented in docs/metrics.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from innoscope.common import metrics_file
from innoscope.common.errors import BadFile
from innoscope.common.schema import convert
from innoscope.metrics import docs, registry

GOOD: dict[str, Any] = {"kind": "gauge", "sources": ["sql"], "help": "Words (Threads_running)."}


def check(name: str = "things", **changes: Any) -> None:
    convert({"version": 1, "metrics": {name: {**GOOD, **changes}}}, metrics_file.MetricsFile, "metrics.yaml")


def test_a_server_has_at_most_3200_series() -> None:
    assert sum(metric.most_series for metric in registry.default()) <= 3200


def test_the_documentation_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    generated = "".join(f"{line}\n" for line in docs.markdown(registry.default()))

    assert page.read_text() == generated, "run: python -m innoscope.metrics.docs > docs/metrics.md"


def test_valid_declarations_are_accepted() -> None:
    check()
    check(labels={"file": ["data", "redo"], "site": 40})


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Things", {}, ": the name is not snake_case"),
        ("things_total", {}, ": the name ends with a suffix that the exposition format adds"),
        ("innoscope_things", {}, ": the name already starts with innoscope_"),
        ("wait_ms", {}, ": the name has a unit that is not a base unit"),
        ("dirty_pct", {}, ": the name has a unit that is not a base unit"),
        ("things", {"kind": "summary"}, ".kind: Invalid enum value 'summary'"),
        ("things", {"kind": "histogram"}, ": histograms are in seconds"),
        ("things", {"kind": "info", "labels": {"a": 1}}, ": the names of info metrics, and only these"),
        ("things_info", {"kind": "info"}, ": an info metric needs labels"),
        ("things", {"labels": {"server": ["a"]}}, ": label 'server' is not snake_case, or is reserved"),
        ("things", {"labels": {"A": ["a"]}}, ": label 'A' is not snake_case"),
        ("things", {"labels": {"result": [False, True]}}, ".labels.result[0]: Expected `str`, got `bool`"),
        ("things", {"labels": {"result": []}}, ".labels.result: Expected `array` of length >= 1"),
        ("things", {"labels": {"site": 0}}, ".labels.site: Expected `int` >= 1"),
        ("things", {"labels": {"site": True}}, ".labels.site: Expected `int | array`, got `bool`"),
        ("things", {"labels": {"site": ["a", "a"]}}, ": label site has a duplicate value"),
        ("things", {"labels": []}, ".labels: Expected `object`, got `array`"),
        ("things", {"sources": ["guess"]}, ".sources[0]: Invalid enum value 'guess'"),
        ("things", {"sources": []}, ".sources: Expected `array` of length >= 1"),
        ("things", {"help": "Words."}, ": help must end with the source of the number"),
        ("things", {"help": "Words (a) and more"}, ": help must be one line that ends with a full stop"),
        ("things", {"help": "Words\n(a)."}, ": help must be one line"),
        ("things", {"owner": 1}, ": Object contains unknown field `owner`"),
        ("things", {"own": "yes"}, ".own: Expected `bool`, got `str`"),
    ],
)
def test_an_invalid_declaration_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile) as caught:
        check(name, **changes)
    assert caught.value.what.startswith(f"metrics.yaml: metrics.{name}{words}")


@pytest.mark.parametrize("document", [[], {"version": 2, "metrics": {}}, {"version": 1, "metrics": []}])
def test_an_invalid_file_is_refused(document: Any) -> None:
    with pytest.raises(BadFile):
        convert(document, metrics_file.MetricsFile, "metrics.yaml")
