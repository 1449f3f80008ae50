"""Write series for every declared metric into Prometheus' data directory before it starts."""

from __future__ import annotations

import itertools
import subprocess
from typing import TYPE_CHECKING

from innoscope.metrics.registry import BUCKETS, default
from prometheus import binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.metrics.registry import Label, Metric

JOB = "catalog"
STEP_S = 15
SAMPLES = 20
#: Prometheus' own series that dashboards query.
_SCRAPE = ("up", "scrape_duration_seconds", "scrape_samples_scraped")


def backfill(folder: Path, end: int) -> None:
    """Write five minutes of samples up to ``end`` (Unix time) for a Prometheus server in ``folder``."""
    text = folder / "catalog.om"
    text.write_text("".join(f"{line}\n" for line in _lines(end)) + "# EOF\n")
    command = [
        binary("promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(text),
        str(folder / "data"),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _lines(end: int) -> Iterator[str]:
    times = range(end - (SAMPLES - 1) * STEP_S, end + 1, STEP_S)
    for metric in default():
        yield f"# TYPE {metric.exported.removesuffix('_total')} {_type(metric)}"
        for labels in _labels(metric):
            for name, extra, values in _series(metric):
                text = ",".join(f'{key}="{value}"' for key, value in {**labels, **extra}.items())
                for time, value in zip(times, values, strict=True):
                    yield f"{name}{{{text}}} {value} {time}"
    for name in _SCRAPE:
        yield f"# TYPE {name} gauge"
        yield from (f'{name}{{job="{JOB}",instance="host"}} 1 {time}' for time in times)


def _type(metric: Metric) -> str:
    return {"counter": "counter", "histogram": "histogram"}.get(metric.kind, "gauge")


def _labels(metric: Metric) -> Iterator[dict[str, str]]:
    """Yield every combination of the label values that ``_values`` selects."""
    base = {"job": JOB, "instance": "host"} | ({} if metric.own else {"server": "shop"})
    for values in itertools.product(*(_values(label) for label in metric.labels)):
        yield base | dict(zip((label.name for label in metric.labels), values, strict=True))


def _values(label: Label) -> tuple[str, ...]:
    if label.name == "wait":
        return ("idle", "row_lock", "redo_space", "deadlock_search", "on_cpu")
    return label.values if label.values is not None else ("one", "two")[: label.most]


def _series(metric: Metric) -> Iterator[tuple[str, dict[str, str], list[float]]]:
    growing = [float(number) for number in range(1, SAMPLES + 1)]
    if metric.kind == "histogram":
        for index, bucket in enumerate(BUCKETS):
            yield (
                f"{metric.exported}_bucket",
                {"le": str(2**bucket / 1e9)},
                [number * (index + 1) for number in growing],
            )
        most = [number * (len(BUCKETS) + 1) for number in growing]
        yield f"{metric.exported}_bucket", {"le": "+Inf"}, most
        yield f"{metric.exported}_sum", {}, growing
        yield f"{metric.exported}_count", {}, most
    else:
        yield metric.exported, {}, growing if metric.kind == "counter" else [1.0] * SAMPLES
