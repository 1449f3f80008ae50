"""Log lines are structured, and systemd is notified."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from innoscope.common.logs import Structured
from innoscope.common.sd_notify import notify

if TYPE_CHECKING:
    from pathlib import Path


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("innoscope.x", logging.WARNING, "x.py", 1, message, (), None)
    made.__dict__.update(extra)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_logfmt_quotes_and_escapes() -> None:
    line = Structured("logfmt").format(record('said "no"\n', pid=7, reason="", path="/a b"))

    assert line == (
        'ts=2023-11-14T22:13:20.250Z level=warning component=innoscope.x msg="said \\"no\\"\\n" pid=7 '
        'reason="" path="/a b"'
    )


def test_json_is_one_line() -> None:
    line = Structured("json").format(record("two\nlines", pid=7, odd={1}))

    assert "\n" not in line
    assert json.loads(line)["msg"] == "two\nlines"
    assert json.loads(line)["pid"] == 7


def test_notification_reaches_systemd_if_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        assert notify("READY=1")
        assert listener.recv(100) == b"READY=1"
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    assert not notify("READY=1")


_HOSTILE = r"'\x1b]0;owned\x07 \x9b \u202e \udcff'"


@pytest.mark.parametrize(
    "uncaught",
    [
        f"raise RuntimeError({_HOSTILE})",
        f"threading.Thread(target=lambda: (_ for _ in ()).throw(RuntimeError({_HOSTILE}))).start()",
        f"type('T', (), {{'__del__': lambda self: int({_HOSTILE})}})()",
    ],
    ids=["main thread", "another thread", "a destructor"],
)
def test_uncaught_exceptions_are_logged_escaped(uncaught: str) -> None:
    setup = "from innoscope.common import logs; logs.set_up('logfmt', 'info'); logs.log_uncaught()"
    command = [sys.executable, "-c", f"import threading\n{setup}\n{uncaught}"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    (line,) = done.stderr.splitlines()
    assert 'msg="uncaught exception"' in line
    assert "\\\\x1b]0;owned" in line or "\\u001b]0;owned" in line
    assert line.isprintable()
