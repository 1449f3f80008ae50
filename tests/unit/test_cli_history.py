"""`innoscope history` groups recorded samples by any columns, and notes what the files cannot answer."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click
import pytest

from innoscope.cli import main as cli_main
from innoscope.cli.parameters import Moment
from innoscope.common.errors import ExitCode
from innoscope.sampling.sessions import files, report
from innoscope.sampling.sessions.model import stack_id
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from unit.session_samples import DIGEST, STACK, START, STATEMENT, Clock, batch, shape

if TYPE_CHECKING:
    from pathlib import Path

OTHER_STACK = ("fsync", "log_write_up_to", "do_command")
SPAN = ("--from", "2023-11-14T22:00", "--to", "2023-11-14T23:00")
pytestmark = pytest.mark.usefixtures("history_memory")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a history that covers 100 s of the server ``orders`` and 50 s of the server ``stock``.

    In each second, ``orders`` has two threads in row_lock (user app), one in fsync_redo (user batch) and one
    in purge; ``stock`` has one thread in row_lock.
    """
    folder = tmp_path_factory.mktemp("history")
    clock = Clock()
    store = HistoryStore(folder, HistoryLimits(), clock, clock)
    store.prepare()
    shapes = (
        shape("row_lock", "app"),
        shape("row_lock", "app"),
        shape("fsync_redo", "batch", OTHER_STACK),
        shape("purge", None, OTHER_STACK)._replace(kind="purge", digest=None),
    )
    for second in range(100):
        store.add("orders", batch(START + second, range(10, 14), 1.0, *shapes))
        if second % 2:
            store.add("stock", batch(START + second, range(50, 51), 1.0, shape("row_lock", "shop")))
    store.close()
    return folder


def run(history: Path, *arguments: str) -> int:
    return cli_main.main(["history", *SPAN, "--dir", str(history), *arguments])


def asked(history: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(history, "--json", *arguments) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def seconds(document: dict[str, object], *names: str) -> dict[tuple[object, ...], float]:
    groups = document["groups"]
    assert isinstance(groups, list)
    return {tuple(group[name] for name in names): group["seconds"] for group in groups}


def test_database_time_and_sessions_are_by_server(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(history, capsys, "--by", "wait")
    assert found["by"] == ["server", "wait"]
    assert found["observed_seconds"] == {"orders": 100.0, "stock": 50.0}
    assert seconds(found, "server", "wait") == {
        ("orders", "row_lock"): 200.0, ("orders", "fsync_redo"): 100.0, ("stock", "row_lock"): 50.0,
    }  # fmt: skip
    assert found["database_seconds"] == 350.0
    assert found["average_active_sessions"] == 4.0  # 3 on orders, and 1 on stock while stock was observed


def test_threads_without_a_client_are_included_on_request(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = asked(history, capsys, "--by", "wait", "--server", "orders", "--all")
    assert seconds(found, "wait")["purge",] == 100.0
    assert found["by"] == ["wait"]
    by_kind = asked(history, capsys, "--by", "wait", "--where", "kind=purge")
    assert seconds(by_kind, "wait") == {("purge",): 100.0}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (["wait=row_lock"], 200.0),
        (["wait=row_lock,fsync_redo"], 300.0),
        (["wait=row_lock", "user=batch"], 0.0),
        (["user=-"], 0.0),
        (["user=app,-"], 200.0),
        ([f"digest={DIGEST}"], 300.0),
        ([f"digest={DIGEST[:12]}"], 300.0),
        (["digest=-"], 0.0),
        ([f"stack={stack_id(STACK) % (1 << 64):016x}"], 200.0),
        (["tid=10"], 100.0),
        (["connection=110,111"], 200.0),
        (["blocker=-"], 300.0),
        (["blocker=7"], 0.0),
    ],
)
def test_conditions(
    history: Path, capsys: pytest.CaptureFixture[str], where: list[str], expected: float
) -> None:
    options = [option for one in where for option in ("--where", one)]
    found = asked(history, capsys, "--server", "orders", "--by", "wait", *options)
    assert found["database_seconds"] == expected


def test_only_samples_of_the_span_count(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["history", "--from", "2023-11-14T22:00:10", "--to", "2023-11-14T22:00:20", "--json"]
    assert cli_main.main([*words, "--dir", str(history), "--server", "orders", "--by", "wait"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["observed_seconds"] == {"orders": 10.0}
    assert found["database_seconds"] == 30.0


def test_table_shows_the_statement(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(history, "--server", "orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "22:00:00 to 23:00:00 · orders observed 3 % of the time · database time 300.0 s · "
        "3.00 average active sessions"
    )
    assert lines[2].split() == ["SECONDS", "SHARE", "SESSIONS", "DIGEST", "WAIT", "STATEMENT"]
    assert lines[3].split(maxsplit=6) == ["200.0", "66.7", "%", "2.00", DIGEST[:12], "row_lock", STATEMENT]


def test_limit_says_what_is_missing(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(history, "--server", "orders", "--by", "tid", "--limit", "1") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 more, 200.0 s; --limit N shows more"


def test_stacks_are_named(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked(history, capsys, "--by", "stack", "--server", "orders")
    groups = found["groups"]
    assert isinstance(groups, list)
    assert {tuple(group["functions"]) for group in groups} == {STACK, OTHER_STACK}


def test_stacks_begin_at_the_server_unless_all_is_requested(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, shown in (([], " log_write_up_to < do_command"), (["--full"], " fsync < log_write_up_to")):
        assert run(history, "--by", "stack", "--server", "orders", *options) == 0
        assert shown in capsys.readouterr().out
        assert run(history, "--by", "wait,stack", "--server", "orders", *options) == 0
        assert shown in capsys.readouterr().out


def test_flame_graph(history: Path, tmp_path: Path) -> None:
    file = tmp_path / "flame.svg"
    assert run(history, "--flame", str(file), "--server", "orders") == 0
    image = file.read_text()
    assert image.startswith("<?xml")
    assert "row_upd_step" in image
    assert "200,000 ms" in image


def test_groups_beyond_the_limit_are_counted(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_GROUPS", 1)
    found = asked(history, capsys, "--by", "tid", "--server", "orders")
    assert found["rest_seconds"] == 200.0
    assert found["database_seconds"] == 300.0
    assert found["notes"] == ["only 1 groups are shown; the others took 200 s"]


def test_time_that_was_not_observed_is_an_error(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["history", "--dir", str(history)]) == ExitCode.FAILURE
    error = capsys.readouterr().err
    assert "nothing was observed from" in error
    assert "the history has hours from 2023-11-14 22:00 to 2023-11-14 23:00" in error


def test_missing_history_has_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["history", "--dir", str(tmp_path)]) == ExitCode.BAD_FILE
    assert "there is no history in" in capsys.readouterr().err
    assert cli_main.main(["history", "--dir", str(tmp_path / "nowhere")]) == ExitCode.BAD_FILE
    assert "[history] in agent.toml" in capsys.readouterr().err


def test_damaged_file_is_noted(history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("2023-11-14T22Z.000001-000001", "2023-11-14T22Z.000002-000002"):
        (tmp_path / name).mkdir()
        for file in (history / "2023-11-14T22Z.000001-000001").iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "2023-11-14T22Z.000002-000002" / "samples.parquet").write_bytes(b"PAR1")
    assert run(tmp_path, "--server", "orders", "--by", "wait") == 0
    shown = capsys.readouterr().out
    assert "note: cannot read" in shown
    assert "000002-000002/samples.parquet: truncated file" in shown
    assert "200.0" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--by", "wiat"], "unknown column 'wiat': did you mean 'wait'?"),
        (["--where", "wait=row_lok"], "unknown class 'row_lok': did you mean 'row_lock'?"),
        (["--where", "wait"], "'wait' is not a condition"),
        (["--where", "nothing=1"], "'nothing=1' is not a condition"),
        (["--where", "stack=xyz"], "is not a stack"),
        (["--where", "tid=x"], "is not a number"),
        (["1h", "--from", "14:00"], "cannot use SPAN with --from"),
        (["--flame", "x", "--json"], "cannot use --json with --flame"),
        (["--from", "-1m", "--to", "-1h"], "the start is not before the end"),
        (["--from", "yesterday"], "is not a time"),
        (["1w"], "is not a duration"),
        (["sql"], "Missing argument 'STATEMENT'"),
    ],
)
def test_invalid_arguments(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(["history", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_moments() -> None:
    now = time.time()
    moment = Moment()
    assert moment.convert("now", None, None) == pytest.approx(now, abs=5)
    assert moment.convert("-15m", None, None) == pytest.approx(now - 900, abs=5)
    assert moment.convert("2023-11-14T22:00", None, None) == START
    assert moment.convert("2023-11-14T23:00+01:00", None, None) == START
    for text in ("00:00", "23:59:59"):
        last = moment.convert(text, None, None)
        assert now - 86_401 < last <= now + 1
        assert datetime.fromtimestamp(last).astimezone().strftime("%H:%M:%S").startswith(text)
    for text in ("24:00", "12", "", "-1w", "9" * 30 + "-01-01"):
        with pytest.raises(click.BadParameter):
            moment.convert(text, None, None)


def test_memory_is_limited_while_files_are_read() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with report.limited_memory(), pytest.raises(MemoryError):
        bytearray(3 << 30)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_sql(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["history", "sql", "--dir", str(history), "--json"]
    statement = (
        "SELECT text, user, sum(weight) AS seconds, min(taken_at) AS first "
        "FROM samples JOIN digests USING (digest) WHERE server = 'orders' GROUP BY ALL ORDER BY seconds DESC"
    )
    assert cli_main.main([*words, statement]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"text": STATEMENT, "user": "app", "seconds": 200.0, "first": "2023-11-14 22:00:00+00:00"},
        {"text": STATEMENT, "user": "batch", "seconds": 100.0, "first": "2023-11-14 22:00:00+00:00"},
    ]
    assert cli_main.main([*words, "SELECT functions[1] AS leaf FROM stacks ORDER BY 1"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"leaf": "fsync"}, {"leaf": "os_event::wait"}]
    assert cli_main.main([*words, "SELECT nothing"]) == ExitCode.SQL_FAILED
    assert "cannot run the query" in capsys.readouterr().err


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "FROM '/etc/hostname'",
        "FROM read_csv('{out}')",
        "COPY samples TO '{out}'",
        "COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{file}' (USE_TMP_FILE false)",
        "ATTACH '{out}'",
        "SELECT 1; COPY samples TO '{out}'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "LOAD '{out}'",
        "FROM COLUMNS",
    ],
)
def test_sql_cannot_access_other_files_or_change_the_history(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], statement: str
) -> None:
    file = next(history.glob("*/samples.parquet"))
    before = file.read_bytes()
    out = tmp_path / "out"
    statement = statement.format(file=file, out=out)

    assert cli_main.main(["history", "sql", "--dir", str(history), statement]) == ExitCode.SQL_FAILED
    assert capsys.readouterr().out == ""
    assert not out.exists()
    assert file.read_bytes() == before


def test_memory_of_sql_is_limited(history: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    statement = "SELECT max(a) FROM (SELECT repeat('x', 1000000) || range AS a FROM range(3000) ORDER BY a)"

    assert cli_main.main(["history", "sql", "--dir", str(history), statement]) == ExitCode.SQL_FAILED
    assert "memory" in capsys.readouterr().err.lower()
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_sql_reads_a_relative_folder(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(history.parent)
    words = ["history", "sql", "--dir", f"./{history.name}", "--json", "SELECT count(*) AS n FROM samples"]
    assert cli_main.main(words) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 450}]


def test_sql_on_a_history_of_an_idle_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = HistoryStore(tmp_path / "it's idle", HistoryLimits(), Clock(), Clock())
    store.prepare()
    store.add("orders", batch(START, range(0)))
    store.close()
    statement = "SELECT count(*) AS n FROM samples UNION ALL SELECT count(*) FROM snapshots"
    words = ["history", "sql", "--dir", str(tmp_path / "it's idle"), "--json", statement]
    assert cli_main.main(words) == 0
    assert sorted(row["n"] for row in json.loads(capsys.readouterr().out)) == [0, 1]


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inject the error, because root can read all files."""

    def denied(_: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files, "live_parts", denied)
    assert cli_main.main(["history", "--dir", str(tmp_path)]) == ExitCode.NO_RIGHTS


def test_sql_without_duckdb_names_the_next_command(
    history: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert cli_main.main(["history", "sql", "SELECT 1", "--dir", str(history)]) == ExitCode.FAILURE
    assert "pip install duckdb" in capsys.readouterr().err
