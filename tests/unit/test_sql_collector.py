"""Test plans, failures and back-off of the SQL collector on a fake server.

tests/live/test_sql.py uses real servers.
"""

from __future__ import annotations

import re
from typing import Any

import pymysql
import pytest

from innoscope.common.errors import BadFile, SqlFailed
from innoscope.common.samples import Outcome, Sample
from innoscope.common.schema import convert
from innoscope.metrics import registry
from innoscope.metrics.collectors import sql_catalog, sql_plan
from innoscope.metrics.collectors.crosscheck import differences
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.metrics.collectors.sql_plan import Answers
from innoscope.target.sql_errors import explaining

DENIED = pymysql.err.OperationalError(1227, "Access denied; you need the PROCESS privilege")
LOST = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query (timed out)")

OLD: dict[str, Any] = {
    "SHOW GLOBAL STATUS": {"Uptime": "10", "Innodb_buffer_pool_pages_free": "5",
                           "Innodb_buffer_pool_pages_data": "15",
                           "Innodb_buffer_pool_pages_dirty": "2", "Compression": "OFF"},
    "SHOW GLOBAL VARIABLES": {"innodb_max_dirty_pages_pct": "75.000000", "max_connections": "151",
                              "innodb_log_file_size": "5242880", "innodb_log_files_in_group": "2"},
    "SELECT NAME": pymysql.err.ProgrammingError(1109, "Unknown table 'INNODB_METRICS'"),
    "SHOW ENGINE INNODB STATUS": "---\nLOG\n---\nLog sequence number 900\nLast checkpoint at  400\n",
}  # fmt: skip


class Server:
    """A fake server that returns or raises the prepared answer for the first words of a statement."""

    user = b"ann"
    where = "/run/mysqld.sock"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.statements: list[str] = []
        self.closed = 0
        self.rows: list[tuple[Any, ...]] = []

    def __call__(self) -> Any:
        return self

    def cursor(self) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None: ...

    def forget_result(self) -> None:
        pass

    def abandon(self) -> None:
        self.closed += 1

    def execute(self, statement: str) -> None:
        self.statements.append(statement)
        matching = (value for start, value in self.answers.items() if statement.startswith(start))
        answer: Any = next(matching, {})
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            self.rows = [("InnoDB", "", answer)]
            return
        wanted = re.search(r"IN \((.*)\)", statement)
        names = set(re.findall(r"'(\w+)'", wanted.group(1))) if wanted else answer.keys()
        self.rows = [(name, value) for name, value in answer.items() if name in names]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def collector(
    server: Any, flavour: str = "mysql", version: tuple[int, ...] = (5, 5, 9)
) -> tuple[SqlCollector, Clock]:
    clock = Clock()
    return SqlCollector(server, sql_catalog.default(), flavour, version, clock=clock), clock


def values(samples: Any) -> dict[str, Any]:
    return {".".join((sample.metric, *sample.labels)): sample.value for sample in samples}


def test_metrics_of_an_old_server_come_from_status_variables_and_monitor() -> None:
    server = Server(OLD)
    found = values(collector(server)[0].collect())

    assert found["uptime_seconds"] == 10
    assert found["buffer_pool_dirty_limit_ratio"] == 0.75
    assert found["redo_written_bytes"] == 900
    assert found["checkpoint_age_max_bytes"] == 7782360  # 5.5.9 computes this for two files of 5 MiB
    assert found["checkpoint_age_bytes"] == 500
    assert found["buffer_pool_dirty_ratio"] == pytest.approx(0.1)
    assert "deadlocks" not in found


def test_the_plan_is_made_once_and_reads_only_what_it_needs() -> None:
    server = Server(OLD)
    sql, clock = collector(server)
    sql.collect()
    server.statements.clear()
    clock.now += 15
    sql.collect()

    assert [statement.split(" WHERE")[0] for statement in server.statements] == [
        "SHOW GLOBAL STATUS", "SHOW GLOBAL VARIABLES", "SHOW ENGINE INNODB STATUS",
    ]  # fmt: skip
    assert "Compression" not in server.statements[0]
    clock.now += 400
    sql.collect()
    assert "SHOW GLOBAL STATUS" in server.statements  # unfiltered, because the set of variables may change


def test_the_monitor_is_not_read_if_status_and_counters_suffice() -> None:
    status = {source.name: "1" for entry in sql_catalog.default().entries for source in entry.sources
              if source.kind == "status"}  # fmt: skip
    counters = {"lock_deadlock_rounds": 3, "buffer_flush_batch_total_pages": 4}
    server = Server(
        {
            "SHOW GLOBAL STATUS": status,
            "SHOW GLOBAL VARIABLES": OLD["SHOW GLOBAL VARIABLES"],
            "SELECT NAME": counters,
        }
    )
    found = values(collector(server, version=(8, 0, 31))[0].collect())

    assert found["deadlock_searches"] == 3
    assert found["flushed_pages.list"] == 4
    assert not any("ENGINE" in statement for statement in server.statements)


def test_mariadb_has_another_name_for_the_column() -> None:
    select = "SELECT NAME, COUNT FROM information_schema.INNODB_METRICS WHERE "
    unknown = pymysql.err.OperationalError(1054, "Unknown column 'STATUS'")
    server = Server({**OLD, f"{select}ENABLED": {"lock_deadlock_rounds": 3}, f"{select}STATUS": unknown})
    del server.answers["SELECT NAME"]

    assert values(collector(server)[0].collect())["deadlock_searches"] == 3


def test_a_counter_with_a_known_bug_is_not_used() -> None:
    counters = {"lock_deadlocks": 3}
    for version, there in (((5, 7, 40), False), ((8, 0, 40), True), ((), False)):
        server = Server({**OLD, "SELECT NAME": counters})
        assert ("deadlocks" in values(collector(server, version=version)[0].collect())) is there, version


def test_without_privileges_the_other_metrics_remain_and_the_reason_is_given() -> None:
    server = Server({**OLD, "SELECT NAME": DENIED, "SHOW ENGINE INNODB STATUS": DENIED})
    sql, _ = collector(server)
    found = values(sql.collect())

    assert found["uptime_seconds"] == 10
    assert "redo_written_bytes" not in found
    assert sql.shortfall is not None
    assert sql.shortfall.startswith("denied: ann lacks a privilege (GRANT PROCESS")


def test_unknown_session_variables_are_ignored() -> None:
    unknown = pymysql.err.InternalError(1193, "Unknown system variable")

    assert values(collector(Server({"SET SESSION": unknown, **OLD}))[0].collect())


def test_failures_back_off_up_to_a_limit_and_then_it_recovers() -> None:
    server = Server({"SHOW GLOBAL STATUS": LOST})
    attempts = 0

    def connect() -> Any:
        nonlocal attempts
        attempts += 1
        return server

    sql, clock = collector(connect)
    for pause in (0.5, 1, 2, 4, 5, 5):
        before = attempts
        for _ in range(3):
            with pytest.raises(CollectorFailed) as caught:
                sql.collect()
        assert (caught.value.reason, attempts) == ("timeout", before + 1)
        clock.now += pause * 0.9
        with pytest.raises(CollectorFailed):
            sql.collect()
        assert attempts == before + 1
        clock.now += pause
    assert server.closed == attempts
    server.answers = OLD
    assert sql.collect()
    assert sql.shortfall is None


def refused(code: int, words: str = "") -> SqlFailed:
    with pytest.raises(SqlFailed) as caught, explaining("ann", "/s.sock"):
        raise pymysql.err.OperationalError(code, words)
    return caught.value


@pytest.mark.parametrize(
    ("code", "words", "reason"),
    [
        (1040, "Too many connections", "refused"),
        (1045, "Access denied for user", "denied"),
        (1698, "Access denied for user", "denied"),
        (2003, "Can't connect to MySQL server on 'localhost' ([Errno 2] No such file)", "refused"),
        (2003, "Can't connect to MySQL server on 'localhost' (timed out)", "timeout"),
        (2013, "Lost connection to MySQL server during query (timed out)", "timeout"),
        (2013, "Lost connection to MySQL server during query", "gone"),
        (3024, "maximum statement execution time exceeded", "timeout"),
        (1146, "Table 'a.b' doesn't exist", "error"),
    ],
)
def test_each_error_code_has_its_reason(code: int, words: str, reason: str) -> None:
    assert explain(refused(code, words)).reason == reason


def test_each_local_error_has_its_reason() -> None:
    assert explain(BadFile("cannot read the option file /x")).reason == "denied"
    assert explain(SqlFailed("no SQL: it listens on no socket")).reason == "refused"
    assert explain(KeyError("x")).reason == "error"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metric": "no_such", "any": [{"status": "A"}]}, "metric 'no_such' is not in metrics.yaml"),
        ({"metric": "fsync_seconds", "any": [{"status": "A"}]}, "sql is not among the sources"),
        ({"metric": "read_ahead_pages", "any": [{"status": "A"}]}, "has 1 labels"),
        ({"metric": "uptime_seconds", "any": []}, r"\.any: Expected `array` of length >= 1"),
        ({"metric": "uptime_seconds", "any": [{"status": "A", "counter": "b"}]}, "exactly one"),
        (
            {"metric": "uptime_seconds", "any": [{"status": "A", "line": "(a)"}]},
            "line is required",
        ),
        ({"metric": "uptime_seconds", "any": [{"monitor": "LOG", "line": "a"}]}, "one or two groups"),
        (
            {"metric": "uptime_seconds", "any": [{"monitor": "LOG", "line": "("}]},
            r"\.line: malformed regular",
        ),
        ({"metric": "uptime_seconds", "any": [{"status": "A", "scale": "2"}]}, r"\.scale: Expected `int"),
        ({"metric": "uptime_seconds", "any": [{"status": "A", "mysql": "8"}, {"x": 1}]}, r"any\[1\].*`x`"),
        ({"metric": "uptime_seconds", "any": [{"status": "A"}], "some": 1}, "unknown field `some`"),
        (
            {"metric": "uptime_seconds", "any": [{"formula": "guess"}]},
            r"\.formula: Invalid enum value 'guess'",
        ),
    ],
)
def test_an_invalid_series_is_named(body: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=rf"sql\.yaml: metrics\[0\].*{words}"):
        convert({"version": 1, "session": [], "metrics": [body]}, sql_catalog.SqlFile, "sql.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version: Invalid"),
        ({"session": ["a; b"]}, r"session\[0\]: "),
        (
            {"metrics": [{"metric": "uptime_seconds", "any": [{"status": "A"}]}] * 2},
            r"metrics\[1\]: duplicate",
        ),
        ({"metric": []}, "unknown field `metric`"),
    ],
)
def test_an_invalid_sql_catalog_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadFile, match=words):
        convert({"version": 1, "session": [], "metrics": []} | change, sql_catalog.SqlFile, "sql.yaml")


def test_every_metric_of_sql_is_in_the_catalog_or_derived() -> None:
    derived = {
        "buffer_pool_other_pages", "buffer_pool_dirty_ratio", "buffer_pool_dirty_headroom_ratio",
        "checkpoint_age_bytes", "checkpoint_age_ratio", "checkpoint_zone", "modified_age_bytes",
        "modified_age_ratio", "modified_zone", "redo_full_seconds", "sql_up", "memory_sql_difference",
    }  # fmt: skip
    in_catalog = {entry.metric for entry in sql_catalog.default().entries}

    assert {metric.name for metric in registry.default() if "sql" in metric.sources} == in_catalog | derived


def test_the_change_buffer_limit_is_a_share_of_the_pool() -> None:
    formula = sql_plan.FORMULAS["change_buffer_limit"].compute
    settings = {"innodb_buffer_pool_size": "134217728", "innodb_page_size": "16384"}

    assert formula(settings) is None
    assert formula(settings | {"innodb_change_buffer_max_size": "25"}) == 2048


def test_the_classic_redo_limit_is_what_the_server_computes() -> None:
    formula = sql_plan.FORMULAS["classic_redo_limit"].compute

    assert formula({}) is None
    assert formula({"innodb_log_file_size": "50331648", "innodb_log_files_in_group": "2"}) == 80826164


def test_a_value_that_is_not_a_number_is_left_out() -> None:
    answers = Answers(status={"Uptime": "ON"})
    entry = next(entry for entry in sql_catalog.default().entries if entry.metric == "uptime_seconds")

    assert answers.value(entry.sources[0]) is None


def test_memory_and_sql_are_compared_series_by_series() -> None:
    memory = (
        Sample("read_ahead_pages", 9, ("linear",)),
        Sample("spin_waits", 1),
        Sample("checkpoint_zone", 1, ("calm",)),
    )
    sql = [
        Sample("read_ahead_pages", 7, ("linear",)),
        Sample("checkpoint_zone", 1, ("calm",)),
        Sample("statements", 3),
    ]

    compared = differences(Outcome("memory", True, 0.0, memory), sql, {"read_ahead_pages", "statements"})
    assert compared == [Sample("memory_sql_difference", 2, ("read_ahead_pages_linear",))]


def test_counts_of_an_earlier_process_are_not_a_difference() -> None:
    memory, past = Sample("buffer_pool_reads", 105), Sample("buffer_pool_reads", 98)
    outcome = Outcome("memory", True, 0.0, (memory,), past=(past,))

    assert differences(outcome, [Sample("buffer_pool_reads", 7)], {"buffer_pool_reads"}) == [
        Sample("memory_sql_difference", 0, ("buffer_pool_reads",))
    ]
