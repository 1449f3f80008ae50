"""InnoDB status and variables without values of users: on texts as servers print and as users forge them."""

from __future__ import annotations

import pytest

from innoscope.diagnose.incident import redaction
from innoscope.target.fingerprint import unfinished

HEAD = """
=====================================
2026-11-22 01:51:33 7f1338eec6c0 INNODB MONITOR OUTPUT
=====================================
----------
SEMAPHORES
----------
Mutex spin waits 0, rounds 0, OS waits 0"""
TRANSACTION = """------------
TRANSACTIONS
------------
Trx id counter 28957
Purge done for trx's n:o < 28951 undo n:o < 0 state: running but idle
History list length 9
LIST OF TRANSACTIONS FOR EACH SESSION:
---TRANSACTION 28956, ACTIVE 0 sec starting index read
mysql tables in use 1, locked 1
LOCK WAIT 2 lock struct(s), heap size 360, 1 row lock(s)
MySQL thread id 23, OS thread handle 0x7f1338fb26c0, query id 67 localhost root statistics
{statement}
------- TRX HAS BEEN WAITING 0 SEC FOR THIS LOCK TO BE GRANTED:
RECORD LOCKS space id 7 page no 3 n bits 80 index `PRIMARY` of table `v`.`t` trx id 28956 lock_mode X waiting
Record lock, heap no 9 PHYSICAL RECORD: n_fields 4; compact format; info bits 0
 0: len 4; hex 53656372; asc Secr;;
 1: SQL NULL;

------------------
"""
TAIL = "--------\nFILE I/O\n--------\nI/O thread 0 state: waiting\nEND OF INNODB MONITOR OUTPUT"


def status(statement: str) -> str:
    text = "\n".join((HEAD, TRANSACTION.format(statement=statement).rstrip("\n"), TAIL))
    return redaction.status(text)


def test_only_values_go() -> None:
    told = status("UPDATE t SET a = 'Secret'\n WHERE b = 17")
    expected = TRANSACTION.format(statement="UPDATE t SET a = ? WHERE b = ?").replace(
        " 0: len 4; hex 53656372; asc Secr;;\n 1: SQL NULL;\n", " [row withheld]\n"
    )
    assert told == "\n".join((HEAD, expected.rstrip("\n"), TAIL))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET a = 'Secret\n\n--------\nFILE I/O\n--------\nSecret\n'",
        "UPDATE t SET a = 'Secret''\n---TRANSACTION 5, ACTIVE 3 sec\nSecret'",
        "UPDATE t SET a = \"Secret\nMySQL thread id 5, query id 6 host user\n Secret \n\" WHERE b = 'Secret'",
        "UPDATE t /* Secret\nmysql tables in use 1, locked 1\n Secret */ SET a = 1 -- Secret\n# Secret",
        "UPDATE t SET a = 'it\\'s a Secret' WHERE b = 'Secret'",
        "UPDATE t SET a = 'Secret never ends",
        "UPDATE t SET a = '" + "Secret " * 84 + "X",
        "UPDATE t SET a = '" + "Secret\nX " * 100,
        "UPDATE t SET a = 'x'\n\n\n, b = 'Secret'",
        "INSERT INTO t VALUES ('a', 1),\n('Secret', 0x536563726574)",
    ],
)
def test_no_literal_comes_through_whatever_it_looks_like(statement: str) -> None:
    told = status(statement)

    assert "Secret" not in told
    assert "53656372" not in told
    assert told.endswith(TAIL)
    assert "\nUPDATE t" in told or "\nINSERT INTO t VALUES (…)" in told


def test_after_a_statement_that_is_cut_off_the_rest_is_told() -> None:
    """InnoDB ends it at 600 bytes, wherever that is."""
    told = status(("UPDATE t SET a = '" + "x" * 600)[:600])

    assert "TRX HAS BEEN WAITING 0 SEC" in told
    assert "[withheld]" not in told


def test_lines_that_nobody_knows_are_withheld() -> None:
    text = TRANSACTION.format(statement="COMMIT") + "Secret one\nSecret two\n"
    told = redaction.status("\n".join((HEAD, text + TAIL)))

    assert told.count("[withheld]") == 1
    assert "Secret" not in told


def test_where_no_section_is_known_nothing_unknown_is_told() -> None:
    assert (
        redaction.status("Secret\nHistory list length 9\nSecret")
        == "[withheld]\nHistory list length 9\n[withheld]"
    )


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("SELECT 1", False), ("SELECT 'a'", False), ("SELECT 'a", True), ("SELECT 'a\\'", True),
        ("SELECT 'a''", True), ("SELECT 'a'''", False), ('SELECT "', True), ("SELECT `a", True),
        ("SELECT `a`", False), ("/* a", True), ("/* a */", False), ("-- 'a", False), ("SELECT x'4", True),
        ("SELECT _utf8 'a'", False), ("", False),
    ],
)  # fmt: skip
def test_an_open_end_is_known(text: str, open_: bool) -> None:
    assert unfinished(text) is open_


def test_variables_that_hold_secrets_say_only_that() -> None:
    kept = {
        "datadir": "/var/lib/mysql/", "max_connections": "151", "foreign_key_checks": "ON",
        "init_connect": "", "key_buffer_size": "8388608", "ssl_key": "/etc/ssl/server-key.pem",
        "default_password_lifetime": "0", "init_file": "/etc/init.sql",
    }  # fmt: skip
    withheld = {
        "init_connect_": "x", "init_slave": "SET @a = 'Secret'", "wsrep_sst_auth": "root:Secret",
        "report_password": "123", "s3_secret_key": "Secret", "master_token": "Secret",
        "authentication_ldap_simple_bind_root_pwd": "Secret",
        "wsrep_provider_options": "socket.ssl_key=a; password=Secret", "some_url": "http://me:Secret@host/",
        "plugin_thing": "user=a;password = Secret",
    }  # fmt: skip
    told = redaction.variables(kept | withheld)

    assert {name: told[name] for name in kept} == kept
    assert {told[name] for name in withheld} == {redaction.WITHHELD}
    assert list(told) == sorted(told)
