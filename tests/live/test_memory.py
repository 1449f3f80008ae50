"""Test that values read from a server's memory equal the values that the server reports over SQL."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope import _native
from innoscope._native import Member
from innoscope.common.data import catalog_path
from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import by_series
from innoscope.memory import catalog, known_layouts
from innoscope.memory.layout import Debug, MemoryLayout
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.target.discover import find_one
from live import truth
from live.stripped import Split
from safety.recovering import ROOMY, make_redo
from scale import few
from servers import ADDED, NAMES, Server
from waiting import thread_states, until
from workloads import TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pymysql.connections import Connection

AGES = {f"aio_oldest_request_seconds.{array}" for array in ("read", "write", "change_buffer", "redo")}
AIO = AGES | {f"aio_pending_requests.{array}" for array in ("read", "write", "change_buffer", "redo")}
#: Number of slots in an array for asynchronous I/O: 256 for each of its 4 threads (os_aio_init, AIO::start).
SLOTS = 1024
SPINS = {"spin_waits", "spin_rounds", "spin_os_waits"}
NEW_MYSQL = {
    *SPINS, "buffer_pool_owner_pages.hash_index", "buffer_pool_owner_pages.recovery",
    "redo_oldest_change_bytes", "change_buffer_pages", "change_buffer_max_pages", "master_ticks",
    "thread_pool_threads",
}  # fmt: skip
#: Catalog values that cannot be read from a server's memory; all others must be available.
ABSENT = {
    "mysql-5.5.9": {"read_ahead_pages.random", "thread_pool_threads"},
    "mysql-5.6.24": {"thread_pool_threads"},
    "mysql-5.7.22": NEW_MYSQL,
    "mysql-8.0.31": NEW_MYSQL,
    "mariadb-10.5": {
        *AIO, *SPINS, "buffer_pool_owner_pages.hash_index", "buffer_pool_owner_pages.recovery",
        "redo_oldest_change_bytes", "change_buffer_max_pages", "buffer_pool_reads", "doublewrite_pages",
        "redo_checkpoint_bytes", "redo_flushed_bytes", "redo_written_bytes", "checkpoint_age_max_bytes",
        "redo_buffer_waits", "row_lock_waits", "row_lock_current_waits", "history_list_length",
        "recovery_scanned_bytes",
    },
    "mariadb-11.4.5": {
        *AIO, *SPINS, "buffer_pool_owner_pages.hash_index", "redo_oldest_change_bytes",
        "change_buffer_pages", "change_buffer_max_pages",
    },
}  # fmt: skip
#: Metrics that are derived from other ones.
DERIVED = {
    "redo_oldest_change_bytes": {"modified_age_bytes", "modified_age_ratio", "modified_zone"},
    "redo_written_bytes": {
        "checkpoint_age_bytes", "checkpoint_age_ratio", "checkpoint_zone", "redo_full_seconds",
    },
}  # fmt: skip
#: Counters that the load changes on all servers.
MOVING = {"buffer_pool_pages_read", "redo_written_bytes", "redo_flushed_bytes", "read_ahead_pages.linear"}
#: A counter that the load changes on the servers in ADDED.
YOUNG = {"buffer_pool_young_pages.not_young"}
OPTIONS = {"innodb_buffer_pool_size": "16M", "innodb_flush_method": "O_DIRECT"}
#: Minimum number of comparisons under a load.
ROUNDS = 20
PATIENCE_S = 120
#: Seconds by which the clocks of a server and of a test may drift apart while an age is measured.
DRIFT_S = 0.01
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


@pytest.fixture(scope="module", params=[*NAMES, *ADDED])
def small(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield each server with a buffer pool smaller than the scanned tables."""
    with Server(request.param, options=OPTIONS) as server:
        yield server


@pytest.fixture
def reader(small: Server, cache: Path) -> MemoryReader:
    return MemoryReader(find_one(pid=small.pid), cache=cache)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and its exited children, one of which reads debug information."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def test_every_value_is_available_or_has_a_reason(small: Server, reader: MemoryReader) -> None:
    before = _cpu_seconds()
    values = reader.read()
    seconds = _cpu_seconds() - before

    explained = reader.explain()
    assert [one.value for one in explained] == list(catalog.load().values)
    for one in explained:
        assert (one.value in values) == (one.source is not None), one
        assert one.source or (one.reason and one.remedy), one
    if small.name in ABSENT:
        assert {one.value for one in explained if one.source is None} == ABSENT[small.name]
        assert seconds < 3


def test_counters_lie_between_two_reads_over_sql(small: Server, reader: MemoryReader) -> None:
    """Compare the counters under a load, which must change those in MOVING and, on ADDED servers, YOUNG."""
    moved: set[str] = set()
    with (
        TableScan(small, 2),
        UpdateStorm(small, 20),
        contextlib.closing(small.connect()) as connection,
    ):
        first = truth.by_sql(connection)
        expected = MOVING | (YOUNG if small.name in ADDED else set())
        wanted = expected - ABSENT[small.name] if small.name in ABSENT else set()
        deadline = time.monotonic() + PATIENCE_S
        for number in itertools.count(1):
            before = truth.by_sql(connection)
            values = reader.read()
            after = truth.by_sql(connection)
            for name in truth.COUNTERS & values.keys() & after.keys():
                assert before[name] <= values[name] <= after[name], name
            moved |= {name for name in truth.COUNTERS & values.keys() if values[name] > first.get(name, 0)}
            if number >= ROUNDS and wanted <= moved:
                break
            assert time.monotonic() < deadline, wanted - moved


def test_pending_reads_are_counted_during_read_ahead(small: Server, reader: MemoryReader) -> None:
    """Scan tables, so that read-ahead requests whole extents at a time."""
    name = "aio_pending_requests.read"
    if small.spec.flavour == "mariadb":  # MariaDB 10.5 removed the AIO slot arrays
        assert name not in reader.read()
        return
    with TableScan(small, 2):
        assert 0 < until(lambda: reader.read()[name], every_s=0.001) <= SLOTS
    until(lambda: reader.read()[name] == 0)


def test_age_of_a_pending_read_grows_while_the_server_is_stopped(small: Server, reader: MemoryReader) -> None:
    name = "aio_oldest_request_seconds.read"
    if small.spec.flavour == "mariadb":
        assert name not in reader.read()
        return

    def read() -> tuple[float, float, float]:
        """Return the age, and the times before and after it was read."""
        began = time.monotonic()
        return reader.read()[name], began, time.monotonic()

    since = time.monotonic()
    with TableScan(small, 2), _stopped_with_pending_read(small, reader):
        first, begin, began = read()
        # A server may round the time of a request down to a second.
        assert 0 <= first < began - since + 1, "requested during the scan"
        until(lambda: reader.read()[name] >= first + 1)
        last, end, ended = read()
    assert end - began - DRIFT_S <= last - first <= ended - begin + DRIFT_S
    until(lambda: reader.read()[name] == 0)


@contextlib.contextmanager
def _stopped_with_pending_read(server: Server, reader: MemoryReader) -> Iterator[None]:
    """Stop the server while a read is pending; resume it when the block ends."""
    deadline = time.monotonic() + 60
    while True:
        os.kill(server.pid, signal.SIGSTOP)
        try:
            _wait_until_stopped(server.pid)
            if reader.read()["aio_pending_requests.read"]:
                yield
                return
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert time.monotonic() < deadline
        time.sleep(0.003)


def test_values_that_do_not_change_are_equal(small: Server, reader: MemoryReader) -> None:
    """Compare until the last comparison of each value has found it equal.

    A gauge can change and change back between two reads over SQL: tables that an earlier test dropped are
    still being purged. A counter cannot.
    """
    with contextlib.closing(small.connect()) as connection:
        compared: set[str] = set()
        deadline = time.monotonic() + 60
        wanted = reader.read().keys() & truth.by_sql(connection).keys()
        while compared != wanted:
            before = truth.by_sql(connection)
            values = reader.read()
            after = truth.by_sql(connection)
            unchanged = {name for name in wanted if before[name] == after[name]}
            equal = {name for name in unchanged if values[name] == pytest.approx(before[name], rel=1e-12)}
            assert not (unchanged - equal) & truth.COUNTERS
            compared = (compared - unchanged) | equal
            assert time.monotonic() < deadline, f"these always change or differ: {wanted - compared}"


def test_collector_exports_only_declared_series(small: Server, reader: MemoryReader) -> None:
    metrics = yaml.safe_load(catalog_path("metrics.yaml").read_bytes())["metrics"]
    collector = MemoryCollector(find_one(pid=small.pid), status=True, variables=True, reader=reader)

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
        missing = {value.partition(".")[0] for value in ABSENT[small.name]}
        assert absent <= missing.union(*(DERIVED.get(name, set()) for name in missing))
        zones = [value for (metric, _), value in series.items() if metric == "checkpoint_zone"]
        assert zones.count(1) == (0 if "redo_written_bytes" in missing else 1)


def test_stopped_server_can_be_read(small: Server, reader: MemoryReader, cache: Path) -> None:
    with contextlib.closing(small.connect()) as connection:
        before = truth.by_sql(connection)
        os.kill(small.pid, signal.SIGSTOP)
        try:
            _wait_until_stopped(small.pid)
            readings = [
                reader.read(),
                reader.read(),
                MemoryReader(find_one(pid=small.pid), cache=cache).read(),
            ]
        finally:
            os.kill(small.pid, signal.SIGCONT)
    first, second, fresh = ({name: reading[name] for name in reading.keys() - AGES} for reading in readings)
    assert first == second == fresh
    for name in AGES & readings[0].keys():  # the clock goes on while the server is stopped
        ages = [reading[name] for reading in readings]
        assert ages == sorted(ages), name
    assert first["connections_limit"] == before["connections_limit"]


def _wait_until_stopped(pid: int) -> None:
    """Wait until all threads of the process are stopped."""
    until(lambda: thread_states(pid) == {"T"}, every_s=0.001)


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

    Status variables that change between the two SQL reads are read again, for up to a minute.
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
            # A gauge can change and change back between the two reads, for example during a purge.
            if not (moved or different.keys() & GAUGES) or time.monotonic() > deadline:
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
    """Wait until the load has caused 200 log writes."""
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
        names = (
            "buffer_pool_pages",
            "buffer_pool_data_pages",
            "buffer_pool_pages_read",
            "connections_limit",
        )
        values, expected = _steady(alone, connection, names)
        assert {name: values[name] for name in names} == {name: expected[name] for name in names}
        lost = {one.value: one for one in alone.explain() if one.source is None}
        assert "redo_written_bytes" in lost
        assert split.build_id[2:] in (lost["redo_written_bytes"].remedy or "")

        with split.by_build_id(tmp_path / "debug") as folder:
            debug = Debug((str(folder),))
            whole = MemoryReader(find_one(pid=server.pid), cache=tmp_path / "cache", debug=debug)
            assert {one.value for one in whole.explain() if one.source is None} == ABSENT["mariadb-11.4.5"]
            values, expected = _steady(whole, connection, ("redo_written_bytes",))
            assert values["redo_written_bytes"] == expected["redo_written_bytes"]


def _steady(
    reader: MemoryReader, connection: Connection[Any], names: Iterable[str]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the values from memory and over SQL, once these values did not change between two SQL reads.

    After its start, a server continues to read pages and to write redo.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        before, values, after = truth.by_sql(connection), reader.read(), truth.by_sql(connection)
        if all(before[name] == after[name] for name in names):
            return values, after
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    "name",
    few(
        ["mysql-5.6.24", "mysql-5.7.22", "mysql-8.0.31", "mariadb-11.4.5"],
        "mysql-8.0.31",
        "mariadb-11.4.5",
        reason="two recover in make test",
    ),
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
        # 8.0 starts with the LSN of the checkpoint, and continues with the first group of records in the
        # block of that LSN. The group can begin before that LSN (recv_recovery_begin, recv_scan_log_recs,
        # log0recv.cc).
        scanned = list(itertools.dropwhile(lambda one: one == lsn, scanned))
        assert scanned == sorted(scanned)
        assert MemoryReader(find_one(pid=server.pid), cache=cache).read()["recovery_scanned_bytes"] == 0


def _watch_start(server: Server, cache: Path) -> list[Any]:
    """Return all values read from the start of the process until it accepts SQL."""
    seen: list[Any] = []
    reader = None
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        with contextlib.suppress(InnoscopeError):  # the process has not called exec yet
            reader = reader or MemoryReader(find_one(pid=server.pid), cache=cache)
            seen.append(reader.read())
        with contextlib.suppress(Exception):
            server.connect(connect_timeout=1).close()
            return seen
    raise AssertionError("the server does not come up")


@pytest.mark.parametrize("name", ["mysql-5.5.9", "mysql-5.6.24", "mysql-5.7.22", "mysql-8.0.31"])
def test_buffer_pool_instances_are_summed(name: str, cache: Path) -> None:
    options: dict[str, str | int | None] = {
        "innodb_buffer_pool_size": "1G",
        "innodb_buffer_pool_instances": 4,
    }
    with Server(name, options=options) as server, contextlib.closing(server.connect()) as connection:
        reader = MemoryReader(find_one(pid=server.pid), cache=cache)
        values, after = _steady(reader, connection, ("buffer_pool_free_pages",))
    assert values["buffer_pool_pages"] == after["buffer_pool_pages"] > 60_000
    assert values["buffer_pool_free_pages"] == after["buffer_pool_free_pages"]


#: The asynchronous I/O of MySQL 8.0 and newer (os0file.cc), reduced to what the catalog reads.
_AIO_SOURCE = """
#include <chrono>
#include <vector>
struct Slot {
  unsigned short pos; bool is_reserved; std::chrono::steady_clock::time_point reservation_time;
  char rest[248];
};
class AIO { char m_mutex[72]; std::vector<Slot> m_slots; long m_n_reserved; static AIO *s_reads; };
AIO *AIO::s_reads;
int main() { return sizeof(std::vector<Slot>); }
"""


def test_debug_information_locates_the_slots_of_asynchronous_io(tmp_path: Path) -> None:
    """Check the catalog's paths on an unstripped program: the test servers with this code are stripped."""
    (tmp_path / "aio.cc").write_text(_AIO_SOURCE)
    subprocess.run(["g++", "-g", "-o", "aio", "aio.cc"], cwd=tmp_path, check=True)
    paths = [path for path in catalog.load().paths if path.startswith("_ZN3AIO7s_readsE")]

    found = _native.members_in_file(str(tmp_path / "aio"), paths)

    assert found is not None
    slots = "_ZN3AIO7s_readsE.m_slots._M_impl"
    assert found.missing == {}
    assert found.found == {
        "_ZN3AIO7s_readsE.m_n_reserved": Member((0, 96), 8, "signed"),
        f"{slots}._M_start[*].reservation_time": Member((0, 72, 8), 8, "signed", 264, 0),
        f"{slots}._M_start[*].is_reserved": Member((0, 72, 2), 1, "unsigned", 264, 0),
        f"{slots}._M_finish": Member((0, 80), 8, "pointer"),
    }


def test_layout_of_another_version_is_refused() -> None:
    """Check that a build accepts members of another version's layout only if their offsets are equal."""
    every = [known for known in known_layouts.load().layouts if known.mysql is not None]
    with Server("mysql-8.0.31") as server:
        target = find_one(pid=server.pid)
        own = known_layouts.of(target)
        assert own is not None
        for other in every:
            names = sorted(other.symbols)
            found = _native.globals_in_process(server.pid, names, [], {})
            layout = MemoryLayout(found.symbols, found.source, {}, {}, described=False)
            accepted = known_layouts.describe(other, server.pid, layout, dict).members
            assert accepted.items() <= own.found(()).items()
            assert (len(accepted) == len(own.found(()))) == (other == own)


def test_redo_limit_of_new_servers_is_just_below_the_estimate_over_sql(cache: Path) -> None:
    """Compare with the estimate of sql.yaml, which does not subtract the reserve for each thread."""
    with Server("mysql-8.0.31", options={"innodb_redo_log_capacity": "1G"}) as server:
        values = MemoryReader(find_one(pid=server.pid), cache=cache).read()
        estimate = 0.846 * int(server.sql("SHOW STATUS LIKE 'Innodb_redo_log_capacity_resized'")[0][1])
    assert 0.99 * estimate < values["checkpoint_age_max_bytes"] < estimate


def test_reading_a_server_that_ended_fails_with_gone(cache: Path) -> None:
    with Server("mysql-5.6.24") as server:
        target = find_one(pid=server.pid)
        collector = MemoryCollector(target, reader=MemoryReader(target, cache=cache))
        assert collector.collect()
        server.kill()
        with pytest.raises(CollectorFailed) as caught:
            collector.collect()
        assert caught.value.reason == "gone"
