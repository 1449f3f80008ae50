"""Test that `diagnose` reports a stopped replica when it uses the account of packaging/account.sql."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from incidents.scenes_replica import OPTIONS, following
from install.test_account import PASSWORD, statements
from safety.command import innoscope
from scale import long
from servers import ADDED, NAMES, Server
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

FOUND = 18
SECONDS = 2
#: Error number of ER_DUP_ENTRY.
DUPLICATE = 1062

pytestmark = long("tests/unit/test_replication_threads.py tests the rules; test_account.py, the privileges")


def _findings(server: Server, option_file: Path) -> tuple[list[str], dict[str, Any]]:
    options = ("--seconds", SECONDS, "--defaults-file", option_file, "--json")
    done = innoscope("diagnose", "--pid", server.pid, *options)
    assert done.returncode == FOUND, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return [one["name"] for one in record["findings"]], record


@pytest.mark.parametrize("name", [*NAMES, *ADDED])
def test_stopped_replica_is_reported(name: str, tmp_path: Path) -> None:
    option_file = tmp_path / "my.cnf"
    option_file.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    option_file.chmod(0o600)
    with Server(name, options=OPTIONS) as replica, following(replica) as pair:
        replica.sql(*statements(PASSWORD))
        pair.stop()
        names, record = _findings(replica, option_file)
        assert "replication_off" in names, record
        assert "replication" not in json.dumps(record["cannot_tell"])

        with closing(replica.connect(user="innoscope", password=PASSWORD)) as connection:
            for statement in (pair.start_statement, pair.stop_statement):
                with pytest.raises(pymysql.MySQLError, match="denied"), connection.cursor() as cursor:
                    cursor.execute(statement)

        pair.start()
        pair.ask("INSERT INTO shop.stock VALUES (3, 0)")
        pair.change("INSERT INTO shop.stock VALUES (3, 0)")
        until(lambda: pair.errno() == DUPLICATE)
        names, record = _findings(replica, option_file)
        assert "replication_stopped" in names, record
        assert f"error {DUPLICATE}" in json.dumps(record), record
