"""Values read from a server's memory equal the values that the server reports over SQL."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.data import catalog_path
from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import by_series
from innoscope.memory import catalog
from innoscope.memory.layout import Debug
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.target.discover import find_one
from live import truth
from live.stripped import Split
from safety.recovering import ROOMY, make_redo
from scale import few
from servers import NAMES, Server
from workloads import TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Catalog values that cannot be read from a server's memory; all others must be available.
ABSENT = {
    "mysql-5.5.9": {"read_ahead_pages.random", "thread_pool_threads"},
    "mysql-5.6.24": {"thread_pool_threads"},
    "mariadb-11.4.5": {"spin_waits", "spin_rounds", "spin_os_waits"},
}
OPTIONS = {"innodb_buffer_pool_size": "16M", "innodb_flush_method": "O_DIRECT"}
ROUNDS = 20
#: Live status variables whose values can decrease.
GAUGES = {
    f"Innodb_{name}"
    for name in (
        "buffer_pool_bytes_dirty", "buffer_pool_pages_data", "buffer_pool_pages_dirty",
        "buffer_pool_pages_free", "buffer_pool_pages_old", "data_pending_fsyncs",
        "ibuf_free_list", "ibuf_segment_size", "ibuf_size", "num_open_files",
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=NAMES)
def small(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield each server with a buffer pool smaller than the scanned tables."""
    with Server(request.param, options=OPTIONS) as server:
        yield server


@pytest.fixture
def reader(small: Server, cache: Path) -> MemoryReader:
    return MemoryReader(find_one(pid=small.pid), cache=cache)


def test_every_value_is_available_or_has_a_reason(small: Server, reader: MemoryReader) -> None:
    started = time.perf_counter()
    values = reader.read()
    seconds = time.perf_counter() - started

    explained = reader.explain()
    assert [one.value for one in explained] == list(catalog.load().values)
    for one in explained:
        assert (one.value in values) == (one.source is not None), one
        assert one.source or (one.reason and one.remedy), one
    if small.name in ABSENT:
        assert {one.value for one in explained if one.source is None} == ABSENT[small.name]
        assert seconds < 3


def test_counters_lie_between_two_reads_over_sql(small: Server, reader: MemoryReader) -> None:
    """Compare the counters under a load that changes all of them."""
    moved: set[str] = set()
    with (
        TableScan(small, 2),
        UpdateStorm(small, 20),
        contextlib.closing(small.connect()) as connection,
    ):
        first = truth.by_sql(connection)
        for _ in range(ROUNDS):
            before = truth.by_sql(connection)
            values = reader.read()
            after = truth.by_sql(connection)
            for name in truth.COUNTERS & values.keys() & after.keys():
                assert before[name] <= values[name] <= after[name], name
            moved |= {name for name in truth.COUNTERS & values.keys() if values[name] > first.get(name, 0)}
    if small.name in ABSENT:
        assert {
            "buffer_pool_pages_read",
            "redo_written_bytes",
            "redo_flushed_bytes",
            "read_ahead_pages.linear",
        } <= moved


def test_values_that_do_not_change_are_equal(small: Server, reader: MemoryReader) -> None:
    with contextlib.closing(small.connect()) as connection:
        compared: set[str] = set()
        deadline = time.monotonic() + 60
        wanted = reader.read().keys() & truth.by_sql(connection).keys()
        while compared != wanted:
            before = truth.by_sql(connection)
            values = reader.read()
            after = truth.by_sql(connection)
            for name in wanted:
                if before[name] == after[name]:
                    assert values[name] == pytest.approx(before[name], rel=1e-12), name
                    compared.add(name)
            assert time.monotonic() < deadline, f"these always change: {wanted - compared}"


def test_collector_exports_only_declared_series(small: Server, reader: MemoryReader) -> None:
    metrics = yaml.safe_load(catalog_path("metrics.yaml").read_bytes())["metrics"]
    collector = MemoryCollector(find_one(pid=small.pid), status=True, variables=True, reader=reader)
    if small.name in ABSENT:
        _read_ahead(small, reader)

    series = by_series([*collector.collect(), *collector.collect()])

    for metric, labels in series:
        declared = metrics[metric].get("labels", {})
        assert "memory" in metrics[metric]["sources"], metric
        assert len(labels) == len(declared), metric
        for label, allowed in zip(labels, declared.values(), strict=True):
            assert isinstance(allowed, int) or label in allowed, (metric, label)
    if small.name in ABSENT:
        exported = {metric for metric, _ in series}
        absent = {metric for metric in metrics if "memory" in metrics[metric]["sources"]} - exported
        assert absent <= ABSENT[small.name]
        assert [value for (metric, _), value in series.items() if metric == "checkpoint_zone"].count(1) == 1


def _read_ahead(server: Server, reader: MemoryReader) -> None:
    """Wait until pages have been read ahead; before that, the share of used pages is undefined."""
    with TableScan(server, 1) as scan:
        scan._until(lambda: reader.read()["read_ahead_pages.linear"] > 0)


def test_read_takes_less_than_a_millisecond(small: Server, reader: MemoryReader) -> None:
    reader.read()
    took = []
    for _ in range(500):
        started = time.perf_counter()
        reader.read()
        took.append(time.perf_counter() - started)
    assert statistics.median(took) < 1e-3


def test_stopped_server_can_be_read(small: Server, reader: MemoryReader, cache: Path) -> None:
    with contextlib.closing(small.connect()) as connection:
        before = truth.by_sql(connection)
        os.kill(small.pid, signal.SIGSTOP)
        try:
            _wait_until_stopped(small.pid)
            first, second = reader.read(), reader.read()
            fresh = MemoryReader(find_one(pid=small.pid), cache=cache).read()
        finally:
            os.kill(small.pid, signal.SIGCONT)
    assert first == second == fresh
    assert first["connections_limit"] == before["connections_limit"]


def _wait_until_stopped(pid: int) -> None:
    """Wait until all threads of the process are stopped."""
    deadline = time.monotonic() + 60
    while True:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
        if {stat.rpartition(")")[2].split()[0] for stat in stats} == {"T"}:
            return
        assert time.monotonic() < deadline


def _numeric(text: str) -> float | str:
    words = {"ON": 1.0, "OFF": 0.0}
    try:
        return words[text] if text in words else float(text)
    except ValueError:
        return text


def test_tables_of_variables_equal_sql(any_server: Server, cache: Path) -> None:
    """Compare the arrays of variables in memory, the only source on 10.11, which has no InnoDB symbols."""
    reader = MemoryReader(find_one(pid=any_server.pid), cache=cache)
    equal_status, equal_variables = _equal(any_server, reader)
    assert len(equal_status) >= (100 if any_server.name == "mariadb-10.11" else 40)
    assert len(equal_variables) >= (125 if any_server.name == "mariadb-10.11" else 50)


def _equal(server: Server, reader: MemoryReader) -> tuple[set[str], set[str]]:
    """Compare status and system variables with SQL; return the names of those that are equal.

    Status variables that change between the two reads are read again, for up to a minute.
    """
    with contextlib.closing(server.connect()) as connection:
        deadline = time.monotonic() + 60
        while True:
            before, variables, _ = truth.read_all(connection)
            status, found = reader.status(), reader.variables()
            after, _, _ = truth.read_all(connection)
            moved = {name for name in status if name in before and before[name] != after[name]}
            different = {
                name: (one.value, before.get(name))
                for name, one in status.items()
                if name not in moved and one.value != _numeric(before.get(name, "?"))
            }
            if not moved or time.monotonic() > deadline:
                break
    assert different == {}
    wrong = {
        name: (value, variables.get(name))
        for name, value in found.items()
        if not _same(value, variables.get(name))
    }
    assert wrong == {}
    return status.keys() - moved, set(found)


def _same(value: float | str, over_sql: str | None) -> bool:
    return over_sql is not None and value in (over_sql, _numeric(over_sql))


@pytest.mark.parametrize("name", ["mariadb-10.11", "mariadb-11.4.5"])
def test_variables_marked_live_change_without_show_status(name: str, cache: Path) -> None:
    """Check that values marked as live do not jump at SHOW STATUS.

    All other variables are copies, which only SHOW STATUS updates.
    """
    with Server(name, options=OPTIONS) as server:
        reader = MemoryReader(find_one(pid=server.pid), cache=cache)
        with contextlib.closing(server.connect()) as connection, UpdateStorm(server, 20):
            truth.read_all(connection)
            first = reader.status()
            _wait_for_redo(reader, server)
            second = reader.status()
            stale = {n for n, one in second.items() if not one.live and one.value == first[n].value}
            before = reader.status()
            shown, _, _ = truth.read_all(connection)
            after = reader.status()
        for variable, one in before.items():
            if one.live and variable not in GAUGES:
                assert one.value <= float(shown[variable]) <= after[variable].value, variable
        assert {"Innodb_lsn_current", "Innodb_checkpoint_age", "Innodb_os_log_written"} <= stale
        assert not {n for n, one in second.items() if n in stale and one.live}


def _wait_for_redo(reader: MemoryReader, server: Server) -> None:
    """Wait until the load has written some redo."""
    begin = reader.status()["Innodb_log_writes"].value
    deadline = time.monotonic() + 60
    while reader.status()["Innodb_log_writes"].value < begin + 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_debug_file_makes_more_values_available_on_a_stripped_server(tmp_path: Path) -> None:
    split = Split("mariadb-11.4.5", tmp_path)
    with split.server() as server, contextlib.closing(server.connect()) as connection:
        target = find_one(pid=server.pid)
        assert target.symbols == "dynsym"
        alone = MemoryReader(target, cache=tmp_path / "cache")
        expected = truth.by_sql(connection)
        values = alone.read()
        for name in (
            "buffer_pool_pages",
            "buffer_pool_data_pages",
            "buffer_pool_pages_read",
            "connections_limit",
        ):
            assert values[name] == expected[name], name
        lost = {one.value: one for one in alone.explain() if one.source is None}
        assert "redo_written_bytes" in lost
        assert split.build_id[2:] in (lost["redo_written_bytes"].remedy or "")

        with split.by_build_id(tmp_path / "debug") as folder:
            debug = Debug((str(folder),))
            whole = MemoryReader(find_one(pid=server.pid), cache=tmp_path / "cache", debug=debug)
            assert {one.value for one in whole.explain() if one.source is None} == ABSENT["mariadb-11.4.5"]
            assert whole.read()["redo_written_bytes"] == truth.by_sql(connection)["redo_written_bytes"]


@pytest.mark.parametrize(
    "name", few(["mysql-5.6.24", "mariadb-11.4.5"], "mariadb-11.4.5", reason="one recovers in make test")
)
def test_crash_recovery_is_visible_before_sql(name: str, cache: Path) -> None:
    with Server(name, options=ROOMY) as server:
        MemoryReader(find_one(pid=server.pid), cache=cache).read()  # this caches the memory layout
        make_redo(server)  # enough redo that recovery takes longer than the start of the reader
        with contextlib.closing(server.connect()) as connection:
            lsn = truth.by_sql(connection)["redo_checkpoint_bytes"]
        server.kill()
        server.start(wait=False)
        seen = _watch_start(server, cache)
        server.wait_ready()
        scanned = [
            values["recovery_scanned_bytes"] for values in seen if values.get("recovery_scanned_bytes")
        ]
        assert max(scanned) > lsn
        assert scanned == sorted(scanned)
        assert MemoryReader(find_one(pid=server.pid), cache=cache).read()["recovery_scanned_bytes"] == 0


def _watch_start(server: Server, cache: Path) -> list[Any]:
    """Return all values read from the start of the process until it accepts SQL."""
    seen: list[Any] = []
    reader = None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(InnoscopeError):  # the process has not executed the server yet
            reader = reader or MemoryReader(find_one(pid=server.pid), cache=cache)
            seen.append(reader.read())
        with contextlib.suppress(Exception):
            server.connect(connect_timeout=1).close()
            return seen
    raise AssertionError("the server does not come up")


@pytest.mark.parametrize("name", ["mysql-5.5.9", "mysql-5.6.24"])
def test_buffer_pool_instances_are_summed(name: str, cache: Path) -> None:
    options: dict[str, str | int | None] = {
        "innodb_buffer_pool_size": "1G",
        "innodb_buffer_pool_instances": 4,
    }
    with Server(name, options=options) as server, contextlib.closing(server.connect()) as connection:
        values = MemoryReader(find_one(pid=server.pid), cache=cache).read()
        expected = truth.by_sql(connection)
    assert values["buffer_pool_pages"] == expected["buffer_pool_pages"] > 60_000
    assert values["buffer_pool_free_pages"] == expected["buffer_pool_free_pages"]


def test_reading_a_server_that_ended_fails_with_gone(cache: Path) -> None:
    with Server("mysql-5.6.24") as server:
        target = find_one(pid=server.pid)
        collector = MemoryCollector(target, reader=MemoryReader(target, cache=cache))
        assert collector.collect()
        server.kill()
        with pytest.raises(CollectorFailed) as caught:
            collector.collect()
        assert caught.value.reason == "gone"
