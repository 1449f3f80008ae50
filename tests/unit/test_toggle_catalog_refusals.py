"""The loader of toggles.yaml rejects damaged files and entries that could do harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile
from innoscope.toggles import catalog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def data() -> Any:
    """Return the parsed file without shared objects, so that a change to one entry does not affect others."""
    shared = yaml.load(catalog_path("toggles.yaml").read_bytes(), Loader=yaml.CSafeLoader)
    return yaml.load(yaml.dump(shared, Dumper=Plain), Loader=yaml.CSafeLoader)


class Plain(yaml.CSafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _set(*path: Any) -> Callable[[Any], None]:
    *parents, key, value = path

    def change(data: Any) -> None:
        for step in ("toggles", *parents):
            data = data[step]
        data[key] = value

    return change


FLAG = ("read_ahead", "servers", 0, "backends", 0, "memory", "srv_startup_is_before_trx_rollback_phase")
SPIN = ("spin_rounds", "servers", 1)
ROUNDS = (*SPIN, "backends", 1, "memory", "srv_n_spin_wait_rounds")
FLUSH = ("flush_neighbors", "servers", 1, "backends", 1, "memory", "srv_flush_neighbors")
UNSIGNED = {"kind": "unsigned", "size": 8, "plausible": [0, 100000]}
#: Invalid: the values of this toggle are words, so its setting needs ``values`` to map words to numbers.
NEIGHBORS = {"kind": "unsigned", "size": 8, "plausible": [0, 2]}


def only(flavour: str, versions: str) -> dict[str, Any]:
    """Return a generation that writes the start-up flag."""
    return {flavour: versions, "backends": [{"memory": {FLAG[-1]: UNSIGNED}}]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set(*FLAG, "size", 2), "srv_startup_is_before_trx_rollback_phase.size: Invalid enum value 2"),
        (_set(*FLAG, "size", True), "size: Expected `int`, got `bool`"),
        (_set(*FLAG, "kind", "float"), None),  # accepted: only the server's own type reveals the error
        (_set(*FLAG, "kind", "double"), "kind: Invalid enum value 'double'"),
        (_set(*FLAG, "kind", ["float"]), "kind: Expected `str`, got `array`"),
        (_set(*FLAG, "plausible", [1, 0]), "phase: plausible is outside the range"),
        (_set(*FLAG, "plausible", [0, float("nan")]), "phase: plausible is outside the range"),
        (_set(*FLAG, "plausible", [0]), "plausible: Expected `array` of length 2"),
        (_set(*FLAG, "values", {"on": 0, "off": 2}), "values: 2 is outside the plausible range"),
        (_set(*FLAG, "values", {"on": 0, "off": float("nan")}), "off must be a number"),
        (_set(*FLAG, "values", {"on": 0, "off": 10**40}), "off must be a number"),
        (_set(*FLAG, "values", {"on": 0}), "needs on and off"),
        (_set(*FLAG, "values", {"on": 0, "off": 1, "max": 1}), "max is not among"),
        (_set(*FLAG, "values", {"on": 0, True: 1}), "a duplicate"),
        (_set(*FLAG, "values", {"on": 0, "off": True}), r"values.off: Expected `int \| float`, got `bool`"),
        (_set(*FLAG, "address", 4096), "unknown field `address`"),
        (_set(*FLAG, "bound", "raise"), "unknown field `bound`"),
        (_set(*ROUNDS, "plausible", [0, 99]), "100000 is outside the plausible range"),
        (_set(*ROUNDS, "size", 1), "plausible is outside the range of unsigned numbers of 1 bytes"),
        (_set(*ROUNDS, "kind", "float"), None),
        (_set(*ROUNDS, "low", 5.5e30), "low must be a number"),
        (_set(*ROUNDS, "low", float("nan")), "low must be a number"),
        (_set(*ROUNDS, "high", 200000), "must be within the toggle's range"),
        (_set(*ROUNDS, "values", {"on": 1, "off": 0}), "takes a number"),
        (_set(*ROUNDS, "scale", -2.0), "scale must be above 0"),
        (_set(*ROUNDS, "scale", "2"), r"scale: Expected `float \| null`, got `str`"),
        (_set(*ROUNDS, "variable", "innodb_doublewrite"), "never be written to memory"),
        (_set(*ROUNDS, "variable", "a b"), "variable: Expected `str` matching regex"),
        (_set("spin_rounds", "values", {"low": 9, "high": 3, "unit": "x"}), "values: low must be below high"),
        (_set("spin_rounds", "values", {"low": 9, "high": float("nan"), "unit": "x"}), "high must be a num"),
        (_set("spin_rounds", "values", "number"), "values: Invalid enum value 'number'"),
        (_set("spin_rounds", "values", ["on"]), "values: needs at least two words"),
        (_set("spin_rounds", "risk", "none"), "risk: Invalid enum value 'none'"),
        (_set("spin_rounds", "what", ""), "spin_rounds: what must be one line"),
        (_set("spin_rounds", "title", "a\x00"), "spin_rounds: title must be one line"),
        (_set("spin_rounds", "titel", "x"), "spin_rounds: .*unknown field `titel`"),
        (_set("spin_rounds", "servers", []), "servers: Expected `array` of length >= 1"),
        (_set(*SPIN, "mysql", 5.5), r"servers\[1\].mysql: quote the version range"),
        (_set(*SPIN, "mysql", "9.9-9.8"), "reversed version range"),
        (_set(*SPIN, "mysql", "5.5+"), r"servers\[1\]: the version range needs an upper bound"),
        (_set(*SPIN, "mysql", "5.1-9.7"), "two entries for mysql 5.1-9.7 and 5.0-5.4"),
        (_set(*SPIN, "mariadb", "12.0-12.3"), "either mysql or mariadb"),
        (_set(*SPIN, "percona", "5.7"), "unknown field `percona`"),
        (_set(*SPIN, "refused", "x"), r"servers\[1\]: needs either backends or refused"),
        (_set(*SPIN, "never", {"memory": "x"}), "memory is in both backends and never"),
        (_set(*SPIN, "never", {"gdb": "x"}), r"servers\[1\]: never: unknown backend 'gdb'"),
        (_set(*SPIN, "backends", []), "needs either backends or refused"),
        (_set(*SPIN, "backends", 1, {"gdb": {"glibc": "abort()"}}), "unknown field `gdb`"),
        (_set(*SPIN, "backends", 1, {"note": "x"}), "needs one of sql, memory"),
        (_set(*SPIN, "backends", 1, {"sql": {}}), "sql: Expected `object` of length >= 1"),
        (_set(*SPIN, "backends", 1, {"sql": {"a": {}}}), "duplicate kind in backends"),
        (_set(*SPIN, "backends", 1, {"sql": {"a b": {}}}), "sql.a b: Expected `str`"),
        (_set(*SPIN, "backends", 0, {"sql": {"a": {"bound": "lower"}}}), "must be without bound"),
        (_set("read_ahead", "servers", 1, "backends", 0, "sql", FLAG[-1], {"bound": "raise"}),
         "bound requires"),
        (_set(*SPIN, "backends", 0, {"sql": {"a": {"to": 1}}}), "to requires bound"),
        (_set("read_ahead", "servers", [only("mariadb", "10.11-11.4")]), "these servers"),
        (_set("read_ahead", "servers", [only("mysql", "5.7")]), "not be written .* these servers"),
        (_set("read_ahead", "servers", [only("mysql", "5.1-5.6")]), "not be written .* these servers"),
        (_set("read_ahead", "servers", [only("mysql", "5.1-5")]), "not be written .* these servers"),
        (_set("read_ahead", "servers", [only("mysql", "5.1-5.5")]), None),
        (_set(*FLUSH, NEIGHBORS), "srv_flush_neighbors: values is missing"),
        *(
            (_set("spin_rounds", "servers", 0, "backends", [{"memory": {symbol: UNSIGNED}}]),
             "never be written")
            for symbol in (
                "srv_use_doublewrite_buf", "btr_search_enabled", "srv_max_buf_pool_modified_pct",
                "srv_unix_file_flush_method", "recv_no_log_write", "srv_shutdown_state", "srv_io_capacity",
                "srv_use_checksums", "srv_force_recovery", "innodb_max_dirty_pages_pct",
            )
        ),
    ],
)  # fmt: skip
def test_an_invalid_entry_is_refused(
    data: Any, tmp_path: Path, change: Callable[[Any], None], words: str | None
) -> None:
    change(data)
    file = tmp_path / "toggles.yaml"
    file.write_text(yaml.dump(data, Dumper=Plain))
    if words is None:
        assert catalog.load(file)
        return
    with pytest.raises(BadFile, match=words) as caught:
        catalog.load(file)
    assert caught.value.what.startswith(f"{file}, line ")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "toggles.yaml"
    for content, words in (
        (b"a: [", "as YAML"),
        (b"", "Expected `object`, got `null`"),
        (b"version: 2\ntoggles: {a: {}}", "version: Invalid enum value 2"),
        (b"version: true\ntoggles: {a: {}}", "version: Expected `int`, got `bool`"),
        (b"version: 1\ntoggles: {}", "toggles: Expected `object` of length >= 1"),
        (b"version: 1\ntoggles: {A b: {}}", "toggles.A b: Expected `str` matching regex"),
        (b"version: 1\ntoggles: &a {a: *a}", "toggles.a: .*unknown field `a`"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 20000, "toggles.yaml"),
    ):
        file.write_bytes(content)
        with pytest.raises(BadFile, match=words):
            catalog.load(file)
    with pytest.raises(BadFile, match="cannot read"):
        catalog.load(tmp_path / "none")
