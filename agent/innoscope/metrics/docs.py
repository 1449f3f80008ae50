"""Generate docs/metrics.md from the registry: ``python -m innoscope.metrics.docs > docs/metrics.md``."""

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

All series except those of the last table have the `server` label, the name of the server. All units are
base units: seconds, bytes, ratios (0.5 is 50 %). If a server does not provide a metric, it has no series; the
reason is in `innoscope probes status` and `innoscope_collector_failure_info`. If several sources provide a
value, the first available one is used, in the order of the column *sources*. If the source changes, counters
continue from their last value; they are not reset.

The buckets of histograms are fixed: {least} s to {most} s by powers of 2. With all labels at their limits,
one server has at most {series:,} series, and Innoscope itself {own:,}. Label values beyond the limit are
dropped and counted in `innoscope_series_dropped_total`.
"""


def markdown(registry: Registry) -> Iterator[str]:
    """Yield the lines of docs/metrics.md."""
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
