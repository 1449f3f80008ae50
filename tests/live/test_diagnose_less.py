"""Test that without SQL, symbols or BPF, `diagnose` reports fewer findings but no wrong ones."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from live.changing import connected
from safety.command import innoscope
from safety.privileges import without_bpf, without_stacks
from scale import few, long
from servers import Server
from waiting import until
from workloads import MetadataLock, RowLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NOTHING, FOUND = 0, 18
SECONDS = 2
#: Servers whose row locks can be read from memory.
NAMED = ["mysql-5.5.9", "mysql-5.6.24", "mysql-5.7.22", "mysql-8.0.31", "mysql-9.7", "mariadb-11.4.5"]


def diagnose(server: Server, *arguments: object, under: Sequence[str] = ()) -> dict[str, Any]:
    """Run diagnose; check the exit code and return the JSON output."""
    command = ("diagnose", "--pid", server.pid, "--seconds", SECONDS, *arguments)
    done = innoscope(*command, "--json", under=under)
    assert done.returncode in (NOTHING, FOUND), done.stderr
    assert "Traceback" not in done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == FOUND) == bool(record["findings"])
    return record


def names(record: dict[str, Any]) -> list[str]:
    return [one["name"] for one in record["findings"]]


def unavailable(record: dict[str, Any], source: str, word: str = "") -> dict[str, Any]:
    """Return the entry for findings that cannot be checked without this source; check reason and remedy.

    ``word`` is in the reason. On a busy host, a login can also time out, which is another reason.
    """
    entries = [one for one in record["cannot_tell"] if one["source"] == source]
    [found] = [one for one in entries if word in one["words"]]
    assert found["findings"]
    assert found["words"]
    assert found["remedy"]
    return dict(found)


@contextlib.contextmanager
def full(server: Server, load: RowLock) -> Iterator[None]:
    """Use up all connections, including the one reserved for SUPER.

    The connections are those of the load, which are its monitor, its holder and its waiters, and the test's.
    """
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(server.connect()))
        others = load.count + 2
        until(lambda: connected(first) == others + 1, lambda: connected(first))
        with first.cursor() as cursor:
            cursor.execute("SET GLOBAL max_connections = 20")
        with contextlib.suppress(pymysql.err.OperationalError):  # Too many connections
            while True:
                stack.enter_context(contextlib.closing(server.connect()))
        yield


def test_stacks_are_enough_without_sql(tmp_path: Path) -> None:
    """Make SQL fail, first with a wrong password, then with too many connections."""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=root\npassword=hunter2secret\n")
    file.chmod(0o600)
    with Server("mysql-5.6.24") as server, RowLock(server, 10) as load:
        denied = diagnose(server, "--defaults-file", file)
        with full(server, load):
            refused = diagnose(server, "-u", "root")
    assert names(denied)[0] == "row_lock_convoy", denied
    assert unavailable(denied, "sql", "denied")
    assert "hunter2secret" not in json.dumps(denied)
    assert names(refused)[0] == "row_lock_convoy", refused
    assert "too_many_connections" in names(refused)
    for record in (denied, refused):
        check_holder(record, load)


@pytest.mark.parametrize(
    "name", few(NAMED, "mysql-8.0.31", "mariadb-11.4.5", reason="mysql-5.6.24 is in the test above")
)
def test_holder_of_a_row_lock_is_read_from_memory(server: Callable[[str], Server], name: str) -> None:
    one = server(name)
    with RowLock(one, 10) as load:
        check_holder(diagnose(one, "--no-sql"), load)


def check_holder(record: dict[str, Any], load: RowLock) -> None:
    """Check that the blocker is the connection that holds the load's row lock."""
    [blocker] = record["findings"][0]["blockers"]
    assert blocker["connection"] == load.holder_id, blocker
    assert blocker["waiting"] == load.count, blocker
    assert blocker["lock"] == f"a row lock on index {load.database}.t1.PRIMARY", blocker


@pytest.mark.parametrize(("load", "finding"), [(RowLock, "row_lock_convoy"), (MetadataLock, "metadata_lock")])
def test_stacks_are_read_by_procfs_without_bpf(
    server: Callable[[str], Server], load: type[RowLock], finding: str
) -> None:
    one = server("mysql-9.7")
    with load(one, 10):
        record = diagnose(one, "-u", "root", under=without_bpf())
    assert names(record)[0] == finding, record
    assert record["looks"] > 0


@pytest.mark.parametrize(("load", "finding"), [(RowLock, "row_lock_convoy"), (MetadataLock, "metadata_lock")])
def test_process_list_replaces_stacks_that_cannot_be_copied(
    server: Callable[[str], Server], load: type[RowLock], finding: str
) -> None:
    one = server("mysql-9.7")
    with load(one, 10):
        record = diagnose(one, "-u", "root", under=without_stacks())
    assert names(record)[0] == finding, record
    assert record["looks"] == 0
    unchecked = unavailable(record, "looks")
    assert "spinning" in unchecked["findings"]
    assert "doctor" in unchecked["remedy"]
    assert finding not in unchecked["findings"]


@long("two other degraded cases are in make test")
def test_unchecked_findings_are_listed_without_any_source() -> None:
    """Diagnose a stripped server without free connections, first with stacks and then without."""
    with Server("mariadb-10.11") as server, RowLock(server, 10) as load, full(server, load):
        command = ("diagnose", "--pid", server.pid, "--seconds", SECONDS, "-u", "root")
        record = diagnose(server, "-u", "root")
        less = diagnose(server, "-u", "root", under=without_stacks())
        text = innoscope(*command, under=without_stacks())
    assert names(record)[0] == "row_lock_convoy", record
    assert names(less) == ["too_many_connections"], less
    assert less["checked"] < record["checked"] < record["rules"]
    assert "row_lock_convoy" in unavailable(less, "looks")["findings"]
    assert text.returncode == FOUND
    assert "Not checked, because data is missing:" in text.stdout
    assert "row lock convoy" in text.stdout
