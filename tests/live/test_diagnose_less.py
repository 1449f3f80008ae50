"""With less to go by the answer is smaller, and still right: no SQL, no names, no BPF, none of them."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from safety.command import innoscope
from safety.privileges import without_bpf
from scale import long
from servers import Server
from workloads import MetadataLock, RowLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NOTHING, FOUND = 0, 18
SECONDS = 2


def diagnose(server: Server, *arguments: object, under: Sequence[str] = ()) -> dict[str, Any]:
    """What it says as JSON, after checking that it says it to a person too."""
    command = ("diagnose", "--pid", server.pid, "--seconds", SECONDS, *arguments)
    done = innoscope(*command, "--json", under=under)
    assert done.returncode in (NOTHING, FOUND), done.stderr
    assert "Traceback" not in done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == FOUND) == bool(record["findings"])
    return record


def names(record: dict[str, Any]) -> list[str]:
    return [one["name"] for one in record["findings"]]


def untold(record: dict[str, Any], source: str) -> dict[str, Any]:
    """What could not be told for want of a source, with the reason and the remedy."""
    [found] = [one for one in record["cannot_tell"] if one["source"] == source]
    assert found["findings"]
    assert found["words"]
    assert found["remedy"]
    return dict(found)


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    """No connection is left, not even the one that is kept for SUPER."""
    with contextlib.ExitStack() as stack:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL max_connections = 20")
        with contextlib.suppress(pymysql.err.OperationalError):  # Too many connections
            while True:
                stack.enter_context(contextlib.closing(server.connect()))
        yield


def test_without_sql_the_stacks_tell(tmp_path: Path) -> None:
    """A wrong password, then too many connections."""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=root\npassword=hunter2secret\n")
    file.chmod(0o600)
    with Server("mysql-5.6.24") as server, RowLock(server, 10):
        denied = diagnose(server, "--defaults-file", file)
        with full(server):
            refused = diagnose(server, "-u", "root")
    assert names(denied)[0] == "row_lock_convoy", denied
    assert "denied" in untold(denied, "sql")["words"]
    assert "hunter2secret" not in json.dumps(denied)
    assert names(refused)[0] == "row_lock_convoy", refused
    assert "too_many_connections" in names(refused)
    [blocker] = refused["findings"][0]["blockers"]
    assert blocker["words"] == "unknown: too many connections", "InnoDB's transactions are asked over SQL"


@pytest.mark.parametrize(("load", "finding"), [(RowLock, "row_lock_convoy"), (MetadataLock, "metadata_lock")])
def test_without_bpf_the_process_list_stands_for_the_stacks(
    server: Callable[[str], Server], load: type[RowLock], finding: str
) -> None:
    one = server("mysql-9.7")
    with load(one, 10):
        record = diagnose(one, "-u", "root", under=without_bpf())
    assert names(record)[0] == finding, record
    assert record["looks"] == 0
    blind = untold(record, "looks")
    assert "spinning" in blind["findings"]
    assert "doctor" in blind["remedy"]
    assert finding not in blind["findings"]


@long("two other degraded cases are in make test")
def test_without_anything_it_says_so() -> None:
    """A full server without names, first with BPF, then without: the less there is, the less is told."""
    with Server("mariadb-10.11") as server, RowLock(server, 10), full(server):
        command = ("diagnose", "--pid", server.pid, "--seconds", SECONDS, "-u", "root")
        record = diagnose(server, "-u", "root")
        less = diagnose(server, "-u", "root", under=without_bpf())
        told = innoscope(*command, under=without_bpf())
    assert names(record)[0] == "row_lock_convoy", record
    assert names(less) == ["too_many_connections"], less
    assert less["checked"] < record["checked"] < record["rules"]
    assert "row_lock_convoy" in untold(less, "looks")["findings"]
    assert told.returncode == FOUND
    assert "Cannot tell:" in told.stdout
    assert "row lock convoy" in told.stdout
