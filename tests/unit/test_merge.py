"""Merging yields one value per series, from the best source, and limits the number of label values."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from innoscope.common.samples import Histogram, Outcome, Sample
from innoscope.metrics import families, registry
from innoscope.metrics.counters import Life
from innoscope.metrics.merge import ExportedSeries, Merger, ServerOutcomes, about, failure

LIFE = Life("a", "b")


def outcome(collector: str, *samples: Sample, reason: str | None = None) -> Outcome:
    return Outcome(collector, reason is None, 0.01, samples, reason)


def merged(*outcomes: Outcome, merger: Merger | None = None) -> dict[tuple[str, tuple[str, ...]], object]:
    made = (merger or Merger(registry.default())).merge(ServerOutcomes("main", LIFE, outcomes))
    return {(one.metric.name, one.labels): one.value for one in made}


def test_first_declared_source_wins_for_each_series() -> None:
    sql = outcome(
        "sql", Sample("read_ahead_pages", 7, ("linear",)), Sample("read_ahead_pages", 8, ("random",))
    )
    probes = outcome("probes", Sample("read_ahead_pages", 1, ("linear",)))

    found = merged(sql, probes)

    assert found == {("read_ahead_pages", ("linear",)): 1, ("read_ahead_pages", ("random",)): 8}


@pytest.mark.parametrize(
    "sample",
    [
        Sample("no_such_metric", 1),
        Sample("connections", 1, ("extra",)),
        Sample("fsync_seconds", Histogram((1,), 1), ("data",)),  # sql is not a source of this metric
    ],
)
def test_undeclared_sample_is_dropped(sample: Sample) -> None:
    assert merged(outcome("sql", sample, Sample("uptime_seconds", 3))) == {("uptime_seconds", ()): 3}


def test_unlisted_label_value_is_dropped() -> None:
    merger = Merger(registry.default())

    assert merged(outcome("probes", Sample("checkpoints", 1, ("sudden",))), merger=merger) == {}
    assert merger.dropped == 1


def test_number_of_label_values_is_limited() -> None:
    merger = Merger(registry.default())
    sites = [
        outcome("probes", *(Sample("latch_spin_waits", 1, (f"a.c:{number}",)) for number in numbers))
        for numbers in (range(40), range(30, 60))
    ]

    assert len(merged(sites[0], merger=merger)) == 40
    assert len(merged(sites[1], merger=merger)) == 10
    assert merger.dropped == 20
    merged(sites[1], merger=merger)
    assert merger.dropped == 20


def test_names_of_a_hostile_server_do_not_fill_memory() -> None:
    merger = Merger(registry.default())
    tracemalloc.start()
    try:
        for run in range(50):
            names = [f"{run}-{number}-" + "x" * 50_000 for number in range(16)]
            merged(
                outcome("state", *(Sample("replication_lag_seconds", 1, (name,)) for name in names)),
                merger=merger,
            )
        del names
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert merger.dropped == 50 * 16 - 8
    assert kept < 1_000_000


def test_labels_that_are_equal_once_printable_are_one_series() -> None:
    lag = [Sample("replication_lag_seconds", 1, (name,)) for name in ("a\x1b", r"a\x1b")]

    assert list(merged(outcome("state", *lag))) == [("replication_lag_seconds", (r"a\x1b",))]


def test_values_not_seen_for_an_hour_make_room_for_new_ones() -> None:
    now = 0.0
    merger = Merger(registry.default(), clock=lambda: now)

    def exported(*names: str) -> set[str]:
        lag = (Sample("replication_lag_seconds", 1, (name,)) for name in names)
        return {labels[0] for _, labels in merged(outcome("state", *lag), merger=merger)}

    old = [f"old{number}" for number in range(8)]
    assert exported(*old) == set(old)
    now = 1800.0
    assert exported("old0", "new") == {"old0"}
    now = 3600.0
    assert exported("new", "old0", "newer") == {"new", "old0", "newer"}
    assert merger.dropped == 1


def test_a_counter_of_a_forgotten_value_starts_again_at_its_source() -> None:
    now = 0.0
    merger = Merger(registry.default(), clock=lambda: now)

    def exported(value: int, *sites: str) -> dict[str, object]:
        waits = (Sample("latch_spin_waits", value, (site,)) for site in sites)
        return {labels[0]: n for (_, labels), n in merged(outcome("probes", *waits), merger=merger).items()}

    sites = [f"a.c:{number}" for number in range(40)]
    exported(9, *sites)
    assert exported(5, "a.c:1") == {"a.c:1": 9}
    now = 3600.0
    exported(1, *(f"b.c:{number}" for number in range(40)))
    now = 7200.0
    assert exported(6, "a.c:1") == {"a.c:1": 6}


def test_failed_outcome_has_its_reason() -> None:
    denied = outcome("sql", reason="denied: access denied for ann: yes")

    assert failure(denied) == ("denied", "access denied for ann: yes")
    assert failure(outcome("sql", reason="KeyError: x")) == ("error", "KeyError: x")
    assert [sample.labels for sample in about([denied])] == [("sql",), ("sql",), ("sql", "denied")]
    assert [sample.labels for sample in about([outcome("sql")])] == [("sql",), ("sql",)]


def test_buckets_are_cumulative_with_fixed_bounds() -> None:
    counts = [0] * 40
    counts[13], counts[14], counts[39] = 1, 2, 4  # below 16 µs, below 33 µs, above all bucket bounds
    found = families.buckets(Histogram(tuple(counts), 1))

    assert found[0] == ("1.6384e-05", 1)
    assert found[1] == ("3.2768e-05", 3)
    assert found[-2] == ("68.719476736", 3)
    assert found[-1] == ("+Inf", 7)
    assert families.buckets(Histogram((5,), 1))[0] == ("1.6384e-05", 5)


def every_series() -> list[ExportedSeries]:
    """Return one series of each metric."""
    found = []
    for metric in registry.default():
        labels = tuple(label.values[0] if label.values else 'quote " and \\ and ü' for label in metric.labels)
        value = Histogram((0,) * 20 + (3,), 99) if metric.kind == "histogram" else 2
        found.append(ExportedSeries(metric, "" if metric.own else "main", labels, value))
    return found


def test_each_metric_is_in_both_formats() -> None:
    text, plain = families.expose(every_series(), "text/plain")
    openmetrics, other = families.expose(every_series(), "application/openmetrics-text; version=1.0.0")

    assert plain.startswith("text/plain")
    assert other.startswith("application/openmetrics-text")
    assert openmetrics.endswith(b"# EOF\n")
    for metric in registry.default():
        name = metric.exported + ("_bucket" if metric.kind == "histogram" else "")
        own = "" if metric.own else r'[^}]*server="main"'
        assert re.search(rf"^{name}(\{{{own}.*)? ", text.decode(), re.MULTILINE), name
    assert b"_created" not in text
