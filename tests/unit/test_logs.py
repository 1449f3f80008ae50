"""Log lines that machines read, and what systemd is told."""

from __future__ import annotations

import json
import logging
import socket
from typing import TYPE_CHECKING

from innoscope.metrics.logs import Structured
from innoscope.metrics.notify import notify

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("innoscope.x", logging.WARNING, "x.py", 1, message, (), None)
    made.__dict__.update(extra)
    made.created, made.msecs = 1_700_000_000.25, 250.0
    return made


def test_logfmt() -> None:
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


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        assert notify("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    assert not notify("READY=1")
