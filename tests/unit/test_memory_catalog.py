"""memory.yaml: what it must be, and that what is installed is it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile
from innoscope.memory import catalog

if TYPE_CHECKING:
    from collections.abc import Callable

METRICS = Path(__file__).parents[2] / "probes" / "catalog" / "metrics.yaml"


@pytest.fixture
def data() -> Any:
    return yaml.safe_load(catalog_path("memory.yaml").read_bytes())


def test_the_installed_catalog_is_good() -> None:
    loaded = catalog.load()

    assert "buf_pool_ptr[*].flush_list.count" in loaded.paths
    assert "srv_buf_pool_instances" in loaded.paths
    assert loaded.values["row_lock_waits"][2].bits == (19, 64)


def test_every_value_is_a_metric_that_memory_may_tell() -> None:
    metrics = yaml.safe_load(METRICS.read_bytes())["metrics"]

    for value in catalog.load().values:
        metric, _, label = value.partition(".")
        assert "memory" in metrics[metric]["sources"], value
        assert bool(label) == bool(metrics[metric].get("labels")), value


def test_a_place_is_for_some_generations() -> None:
    source = catalog.Source(flavour="mariadb", least=(10, 6), below=(11,))

    assert source.is_for("mariadb", (10, 11, 19))
    assert not source.is_for("mariadb", (10, 5, 9))
    assert not source.is_for("mariadb", (11, 4, 5))
    assert not source.is_for("mysql", (10, 11, 19))
    assert not source.is_for("mariadb", ())
    assert catalog.Source().is_for("mysql", ())


def _set(*path: Any) -> Callable[[Any], None]:
    *way, key, value = path

    def change(data: Any) -> None:
        for step in way:
            data = data[step]
        data[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("version", 2), "version is not 1"),
        (_set("more", 1), "unknown key 'more'"),
        (_set("values", []), "must be mappings"),
        (_set("values", "Upper", [{"paths": ["a"]}]), "'Upper' is not a value"),
        (_set("values", "a", []), "'a' is not a value"),
        (_set("values", "a", ["b"]), "a, place 1: is not a mapping"),
        (_set("values", "a", [{"paths": ["b"], "status": "c"}]), "exactly one of"),
        (_set("values", "a", [{"symbol": "b"}]), "a symbol needs a kind"),
        (_set("values", "a", [{"paths": ["b c"]}]), "'b c' is not a path"),
        (_set("values", "a", [{"paths": ["b"], "when": "c."}]), "'c.' is not a path"),
        (_set("values", "a", [{"paths": ["b[*].c"]}]), "lengths has no entry for b"),
        (_set("values", "a", [{"paths": ["b"], "bits": [8, 4]}]), "bits is not"),
        (_set("values", "a", [{"paths": ["b"], "scale": 2}]), "scale is not"),
        (_set("values", "a", [{"paths": ["b"], "flavour": "percona"}]), "unknown flavour"),
        (_set("values", "a", [{"paths": ["b"], "from": "new"}]), "from is not a version"),
        (_set("values", "a", [{"paths": ["b"], "fro": "5.6"}]), "unknown key 'fro'"),
        (_set("tables", {}), "tables must be"),
        (_set("tables", "status", "types", "mysql", {1: "char"}), "types.mysql is not"),
        (_set("tables", "status", "live", "mariadb", None), "live.mariadb is not a list"),
    ],
)
def test_what_is_wrong_is_said(data: Any, change: Callable[[Any], None], said: str) -> None:
    broken = copy.deepcopy(data)
    change(broken)

    assert any(said in problem for problem in catalog.problems(broken)), catalog.problems(broken)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "memory.yaml"
    for text, said in (("a: [", "is not YAML"), ("[]", "not a mapping")):
        file.write_text(text)
        with pytest.raises(BadFile, match=said):
            catalog.load(file)
    with pytest.raises(BadFile, match="cannot read"):
        catalog.load(tmp_path / "none")
