"""With less to go by the answer is smaller, and still right: no SQL, no names, no BPF, none of them."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from safety.command import innoscope
from safety.privileges import without_bpf
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
            cursor.execute("SHOW STATUS LIKE 'Threads_connected'")
            others = int(cursor.fetchone()[1]) - 1
            cursor.execute(f"SET GLOBAL max_connections = {max(10, others)}")
        for _ in range(max(10, others) + 1 - others):
            stack.enter_context(contextlib.closing(server.connect()))
        yield
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL max_connections = 2500")


@pytest.mark.parametrize("name", ["mysql-5.6.24", "mariadb-10.11"])
def test_a_full_server_is_told_by_its_stacks(name: str) -> None:
    """Too many connections; 10.11 has no names of InnoDB either."""
    with Server(name) as server, RowLock(server, 10), full(server):
        record = diagnose(server, "-u", "root")
    assert names(record)[0] == "row_lock_convoy", record
    assert "too_many_connections" in names(record)
    refused = untold(record, "sql")
    assert "oo many connections" in refused["words"]


def test_a_wrong_password(server: Callable[[str], Server], tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text("[client]\nuser=root\npassword=hunter2secret\n")
    file.chmod(0o600)
    one = server("mysql-5.6.24")
    with MetadataLock(one, 8) as load:
        record = diagnose(one, "--defaults-file", file)
    assert names(record)[0] == "metadata_lock", record
    assert "denied" in untold(record, "sql")["words"].lower()
    assert "hunter2secret" not in json.dumps(record)
    [blocker] = record["findings"][0]["blockers"]
    assert blocker["waiting"] == len(load.connection_ids()), "who it is stands in the server's memory"
    assert blocker["connection"] not in load.connection_ids()


def test_without_names_of_innodb(server: Callable[[str], Server]) -> None:
    one = server("mariadb-10.11")
    with RowLock(one, 10):
        record = diagnose(one, "-u", "root")
    assert names(record)[0] == "row_lock_convoy", record
    assert "idle in its transaction" in record["findings"][0]["blockers"][0]["words"] or (
        "holds a row's lock" in record["findings"][0]["blockers"][0]["words"]
    )


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


def test_without_anything_it_says_so() -> None:
    """No SQL, no BPF, no names: what the process and its memory tell, and why the rest is not known."""
    with Server("mariadb-10.11") as server, RowLock(server, 10), full(server):
        record = diagnose(server, "-u", "root", under=without_bpf())
        told = innoscope(
            "diagnose", "--pid", server.pid, "--seconds", SECONDS, "-u", "root", under=without_bpf()
        )
    assert names(record) == ["too_many_connections"], record
    assert record["checked"] < record["rules"]
    assert "row_lock_convoy" in untold(record, "looks")["findings"]
    assert told.returncode == FOUND
    assert "Cannot tell:" in told.stdout
    assert "row lock convoy" in told.stdout
