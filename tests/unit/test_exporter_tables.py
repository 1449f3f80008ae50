"""docs/mysqld-exporter.md matches dashboards/mysqld_exporter.yaml."""

from __future__ import annotations

from generate.exporter import PAGE, load, page


def test_tables_are_up_to_date() -> None:
    text = PAGE.read_text()

    assert page(text, load()) == text, "run: PYTHONPATH=dashboards python -m generate.exporter"


def test_sources_and_reasons_exist_and_are_used() -> None:
    file = load()

    assert {source for one in file.metrics.values() for source in one.used_by} == file.sources.keys()
    assert {one.reason for one in file.metrics.values()} - {None} == file.reasons.keys()
