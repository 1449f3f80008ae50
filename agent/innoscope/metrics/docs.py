"""Generate ``docs/metrics.md`` from the registry: ``python -m innoscope.metrics.docs > docs/metrics.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.common import console
from innoscope.metrics.registry import BUCKETS, Registry, default

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.metrics.registry import Label, Metric

_HEAD = """\
# Metrics

Generated from `probes/catalog/metrics.yaml` by `python -m innoscope.metrics.docs > docs/metrics.md`.

All series except those of the last table have the label `server`, the name of the server they describe. All
values are in base units: seconds, bytes, ratios from 0 to 1. If a server does not provide a metric, the
series is missing; `innoscope probes status` and `innoscope_collector_failure_info` show the reason. If a
metric has several sources, the first that has a value is used. When the source changes, a counter continues
from its last value.

Histograms have the fixed bounds {least} s to {most} s by factor 2. With every label at its bound, one server
has at most {series:,} series, and Innoscope itself {own:,}. Label values beyond the bound are omitted and
counted in `innoscope_series_dropped_total`.
"""


def markdown(registry: Registry) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _HEAD.format(
        least=f"{2 ** BUCKETS[0] / 1e9:.6f}",
        most=f"{2 ** BUCKETS[-1] / 1e9:.1f}",
        series=sum(metric.most_series for metric in registry if not metric.own),
        own=sum(metric.most_series for metric in registry if metric.own),
    ).splitlines()
    yield from _table("About servers", [metric for metric in registry if not metric.own])
    yield from _table(
        "About Innoscope itself, without `server`", [metric for metric in registry if metric.own]
    )


def _table(heading: str, metrics: list[Metric]) -> Iterator[str]:
    yield from (
        "",
        f"## {heading}",
        "",
        "| metric | kind | labels | sources | meaning |",
        "|---|---|---|---|---|",
    )
    for metric in metrics:
        labels = "; ".join(_label(label) for label in metric.labels)
        row = (f"`{metric.exported}`", metric.kind, labels, ", ".join(metric.sources), metric.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _label(label: Label) -> str:
    values = ", ".join(label.values) if label.values is not None else f"at most {label.most}"
    return f"`{label.name}`: {values}"


if __name__ == "__main__":
    console.lines(markdown(default()))
