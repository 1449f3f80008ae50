"""InnoDB status and variables are stored without user data, even if a user imitates InnoDB's text."""

from __future__ import annotations

import pytest

from innoscope.diagnose.incident import redaction

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


def test_only_values_are_removed() -> None:
    output = status("UPDATE t SET a = 'Secret'\n WHERE b = 17")
    expected = TRANSACTION.format(statement="UPDATE `t` SET `a` = ? WHERE `b` = ?").replace(
        " 0: len 4; hex 53656372; asc Secr;;\n 1: SQL NULL;\n", " [row withheld]\n"
    )
    assert output == "\n".join((HEAD, expected.rstrip("\n"), TAIL))


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
def test_no_literal_remains_whatever_its_form(statement: str) -> None:
    output = status(statement)

    assert "Secret" not in output
    assert "53656372" not in output
    assert output.endswith(TAIL)
    assert "\nUPDATE `t`" in output or "\nINSERT INTO `t` VALUES (...) /* , ... */" in output


def test_text_after_a_truncated_statement_remains() -> None:
    """Use a statement of 600 bytes, the length at which InnoDB truncates statements."""
    output = status(("UPDATE t SET a = '" + "x" * 600)[:600])

    assert "TRX HAS BEEN WAITING 0 SEC" in output
    assert "[withheld]" not in output


def test_unknown_lines_are_withheld() -> None:
    text = TRANSACTION.format(statement="COMMIT") + "Secret one\nSecret two\n"
    output = redaction.status("\n".join((HEAD, text + TAIL)))

    assert output.count("[withheld]") == 1
    assert "Secret" not in output
    outside = redaction.status("Secret\nHistory list length 9\nSecret")
    assert outside == "[withheld]\nHistory list length 9\n[withheld]"


def test_secret_variables_are_withheld() -> None:
    public = {
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
    output = redaction.variables(public | withheld)

    assert {name: output[name] for name in public} == public
    assert {output[name] for name in withheld} == {redaction.WITHHELD}
    assert list(output) == sorted(output)
