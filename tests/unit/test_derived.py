"""Derived values are computed from raw values, and failed collectors report the reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import yaml

from innoscope.common.errors import BadFile, NoRights, NoSuchProcess
from innoscope.common.samples import Sample, by_series
from innoscope.memory.reader import Explanation, MemoryReader
from innoscope.metrics.collectors import derived
from innoscope.metrics.collectors.errors import REASONS, CollectorFailed, explaining
from innoscope.metrics.collectors.memory import MemoryCollector

if TYPE_CHECKING:
    from innoscope.target.model import Target

METRICS = yaml.safe_load((Path(__file__).parents[2] / "probes" / "catalog" / "metrics.yaml").read_bytes())[
    "metrics"
]

POOL = {
    "buffer_pool_pages": 1000.0,
    "buffer_pool_free_pages": 200.0,
    "buffer_pool_data_pages": 600.0,
    "buffer_pool_dirty_pages": 400.0,
    "buffer_pool_dirty_limit_ratio": 0.75,
}
REDO = {"redo_written_bytes": 1700.0, "redo_checkpoint_bytes": 1000.0, "checkpoint_age_max_bytes": 1000.0}


def _of(samples: list[Sample]) -> dict[str, object]:
    return {"/".join((metric, *labels)): value for (metric, labels), value in by_series(samples).items()}


RATIOS = {"buffer_pool_dirty_ratio": 0.5, "buffer_pool_dirty_headroom_ratio": 0.25}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (POOL, {"buffer_pool_other_pages": 200} | RATIOS),
        (dict.fromkeys(POOL, 0.0), {"buffer_pool_other_pages": 0}),
        (POOL | {"buffer_pool_data_pages": 801.0}, {"buffer_pool_other_pages": 0}),
    ],
    ids=["pool", "empty pool", "pages moved between the reads"],
)
def test_values_are_derived(values: dict[str, float], expected: dict[str, float]) -> None:
    found = _of(derived.derive(values, None, 0))

    assert {name: found.get(name) for name in expected} == expected
    assert expected or not found


@pytest.mark.parametrize("missing", sorted(POOL))
def test_value_with_a_missing_operand_is_omitted(missing: str) -> None:
    values = {name: value for name, value in POOL.items() if name != missing}
    needs = {
        "buffer_pool_other_pages": {"buffer_pool_pages", "buffer_pool_free_pages", "buffer_pool_data_pages"},
        "buffer_pool_dirty_ratio": set(POOL) - {"buffer_pool_pages", "buffer_pool_dirty_limit_ratio"},
        "buffer_pool_dirty_headroom_ratio": set(POOL) - {"buffer_pool_pages"},
    }

    assert _of(derived.derive(values, None, 0)).keys() == {
        name for name, operands in needs.items() if missing not in operands
    }


@pytest.mark.parametrize(
    ("age", "zone"),
    [
        (875, "calm"),
        (876, "async"),
        (937, "async"),
        (938, "sync"),
        (968, "sync"),
        (969, "checkpoint"),
    ],
)
def test_exactly_one_checkpoint_zone_is_set(age: float, zone: str) -> None:
    values = REDO | {"redo_written_bytes": 1000.0 + age}

    found = _of(derived.derive(values, None, 0))

    zones = {
        name.partition("/")[2]: value for name, value in found.items() if name.startswith("checkpoint_zone")
    }
    assert [name for name, value in zones.items() if value == 1] == [zone]
    assert list(zones) == METRICS["checkpoint_zone"]["labels"]["zone"]
    assert found["checkpoint_age_ratio"] == age / 1000
    assert not [name for name in found if name.startswith("modified")]


@pytest.mark.parametrize(
    ("oldest", "age", "zone"), [(1900, 100, "calm"), (1050, 950, "sync"), (0, 0, "calm")]
)
def test_the_oldest_modification_has_a_zone_of_its_own(oldest: float, age: float, zone: str) -> None:
    values = REDO | {"redo_written_bytes": 2000.0, "redo_oldest_change_bytes": oldest}

    found = _of(derived.derive(values, None, 0))

    assert found["modified_age_bytes"] == age
    assert found["modified_age_ratio"] == age / 1000
    assert found[f"modified_zone/{zone}"] == 1
    assert found["checkpoint_zone/checkpoint"] == 1


def test_pages_without_a_known_owner_belong_to_locks() -> None:
    values = POOL | {"buffer_pool_owner_pages.hash_index": 3, "buffer_pool_owner_pages.recovery": 1}

    found = _of(derived.derive(values, None, 0))

    assert found["buffer_pool_owner_pages/locks"] == 196


def test_time_until_the_redo_space_is_full() -> None:
    earlier = (10.0, REDO | {"redo_written_bytes": 1600.0})

    assert _of(derived.derive(REDO, earlier, 20.0))["redo_full_seconds"] == 30  # 300 bytes at 10 bytes/s
    assert _of(derived.derive(REDO, (10.0, REDO), 20.0))["redo_full_seconds"] == math.inf
    assert "redo_full_seconds" not in _of(derived.derive(REDO, None, 20.0))
    assert "redo_full_seconds" not in _of(derived.derive(REDO, (20.0, REDO), 20.0))
    assert _of(derived.derive(REDO | {"redo_written_bytes": 2500.0}, earlier, 20.0))["redo_full_seconds"] == 0


def test_checkpoint_age_of_the_server_is_preferred() -> None:
    assert _of(derived.derive({"checkpoint_age_bytes": 7.0} | REDO, None, 0))["checkpoint_age_bytes"] == 7
    assert _of(derived.derive(REDO | {"redo_written_bytes": 900.0}, None, 0))["checkpoint_age_bytes"] == 0


def test_values_become_samples_with_their_label() -> None:
    values = {"buffer_pool_pages": 3.0, "read_ahead_pages.linear": 4.0, "no_metric": 5.0}

    assert derived.plain(values, METRICS) == [
        Sample("buffer_pool_pages", 3.0),
        Sample("read_ahead_pages", 4.0, ("linear",)),
    ]


def test_derived_metrics_are_declared() -> None:
    samples = derived.derive(POOL | REDO, (0.0, REDO), 1.0)

    for sample in samples:
        labels = METRICS[sample.metric].get("labels", {})
        assert len(sample.labels) == len(labels)
        assert all(value in labels[name] for value, name in zip(sample.labels, labels, strict=True))


def test_failure_reasons_match_the_metric() -> None:
    assert list(REASONS) == METRICS["collector_failure_info"]["labels"]["reason"]
    with pytest.raises(ValueError, match="unknown reason"):
        CollectorFailed("bored", "…")


class _EmptyReader:
    """A reader that finds no values."""

    def read(self) -> dict[str, float]:
        return {}

    def explain(self) -> list[Explanation]:
        return [Explanation("buffer_pool_pages", None, "no symbol buf_pool", "install the debug package")]


def test_server_without_readable_values_is_unsupported() -> None:
    collector = MemoryCollector(cast("Target", None), reader=cast("MemoryReader", _EmptyReader()))

    with pytest.raises(CollectorFailed, match="no symbol buf_pool") as caught:
        collector.collect()

    assert (caught.value.reason, caught.value.remedy) == ("unsupported", "install the debug package")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoSuchProcess("a"), "gone"),
        (NoRights("a"), "rights"),
        (BadFile("a"), "error"),
        (CollectorFailed("timeout", "a"), "timeout"),
    ],
)
def test_exceptions_become_failure_reasons(error: Exception, reason: str) -> None:
    with pytest.raises(CollectorFailed) as caught, explaining():
        raise error
    assert (caught.value.reason, caught.value.words) == (reason, "a")
