"""The installed memory.yaml is valid, and invalid catalogs are rejected."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile
from innoscope.common.schema import convert
from innoscope.memory import catalog

if TYPE_CHECKING:
    from collections.abc import Callable

METRICS = Path(__file__).parents[2] / "probes" / "catalog" / "metrics.yaml"


@pytest.fixture
def data() -> Any:
    return yaml.safe_load(catalog_path("memory.yaml").read_bytes())


def test_installed_catalog_is_valid() -> None:
    loaded = catalog.load()

    assert "buf_pool_ptr[*].flush_list.count" in loaded.paths
    assert "srv_buf_pool_instances" in loaded.paths
    assert loaded.values["row_lock_waits"][2].bits == (19, 64)


def test_every_variable_of_the_server_has_a_citation() -> None:
    for value, sources in catalog.load().values.items():
        for source in sources:
            assert bool(source.source) == bool(source.paths), f"{value}: {source.paths}"


def test_values_are_metrics_with_memory_as_a_source() -> None:
    metrics = yaml.safe_load(METRICS.read_bytes())["metrics"]

    for value in catalog.load().values:
        metric, _, label = value.partition(".")
        assert "memory" in metrics[metric]["sources"], value
        assert bool(label) == bool(metrics[metric].get("labels")), value


def _set(*path: Any) -> Callable[[Any], None]:
    *parents, key, value = path

    def change(data: Any) -> None:
        for step in parents:
            data = data[step]
        data[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            _set("values", "x", [{"status": "S", "plus": {"path": "a.b", "bits": [0, 3]}}]),
            "plus requires paths",
        ),
        (_set("values", "x", [{"status": "S", "minus": ["a.b"]}]), "minus requires paths"),
        (_set("values", "x", [{"paths": ["a"], "per": "b"}]), "per requires symbol"),
        (_set("values", "x", [{"paths": ["a"], "clock": "monotonic"}]), "clock requires age_where"),
        (_set("values", "x", [{"paths": ["a"], "plus": {"path": "b", "bits": [3, 3]}}]), "bits must be"),
        (_set("values", "x", [{"paths": ["a"], "source": "somewhere"}]), "matching regex"),
        (_set("version", 2), "version: Invalid enum value 2"),
        (_set("values", "Upper", [{"paths": ["a"]}]), "values.Upper: Expected `str` matching regex"),
        (_set("values", "a", []), "values.a: Expected `array` of length >= 1"),
        (_set("values", "a", [{"paths": ["b"], "status": "c"}]), "values.a[0]: needs exactly one of"),
        (_set("values", "a", [{"settled": True}]), "values.a[0]: needs exactly one of"),
        (
            _set("values", "a", [{"symbol": "b"}]),
            "values.a[0]: kind is required with",
        ),
        (
            _set("values", "a", [{"paths": ["b"], "kind": "float"}]),
            "values.a[0]: kind is required with",
        ),
        (_set("values", "a", [{"symbol": "b", "kind": "int"}]), "values.a[0].kind: Invalid enum value"),
        (_set("values", "a", [{"paths": ["b c"]}]), "values.a[0].paths[0]: Expected `str` matching regex"),
        (_set("values", "a", [{"paths": ["b"], "when": "c."}]), "values.a[0].when: Expected `str` matching"),
        (_set("values", "a", [{"paths": ["b[*].c"]}]), "the number of elements of b is missing"),
        (_set("values", "a", [{"paths": ["b"], "when": "c[*].d"}]), "the number of elements of c is missing"),
        (_set("values", "a", [{"paths": ["b"], "bits": [8, 4]}]), "values.a[0]: bits must be"),
        (
            _set("values", "a", [{"paths": ["b"], "bits": [8]}]),
            "values.a[0].bits: Expected `array`",
        ),
        (
            _set("values", "a", [{"paths": ["b"], "mysql": "new"}]),
            "values.a[0].mysql: malformed version",
        ),
        (
            _set("tables", "status", "types", "mysql", {1: "char"}),
            "tables.status.types.mysql[1]: Invalid",
        ),
        (_set("tables", "status", "types", {}), "tables.status: types and live must have the keys"),
    ],
)
def test_invalid_catalog_is_named(data: Any, change: Callable[[Any], None], problem: str) -> None:
    broken = copy.deepcopy(data)
    change(broken)

    pattern = problem.replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(BadFile, match=f"memory.yaml: .*{pattern}"):
        convert(broken, catalog.MemoryCatalog, "memory.yaml")
