"""Test that an incident file contains no secrets or literals, and yields the same findings elsewhere."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.main import main
from innoscope.diagnose.incident import files
from innoscope.diagnose.incident import text as incident_text
from safety.command import innoscope, run
from safety.planted_secrets import SECRETS, leaks, planted, shown_by
from safety.privileges import nobody
from scale import few
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Command prefix that imitates another machine: other processes, mounts, network and host name.
_ELSEWHERE = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "sh", "-c")
_MOVE = 'hostname elsewhere && mount -t tmpfs tmpfs /usr/lib/python3/dist-packages/bcc && exec "$@"'
_FOUND = 18
#: Secrets that newer servers do not show, or do not always show.
_NOT_ALWAYS_SHOWN = {"Zq1Create", "Zq5Foreign", "Zq10Password"}


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a directory that all users can read."""
    with tempfile.TemporaryDirectory(prefix="innoscope-incident-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.parametrize(
    "name",
    few(("mysql-5.6.24", "mysql-9.7", "mariadb-11.4.5"), "mysql-9.7", reason="the newest server shows most"),
)
def test_an_incident_file_has_no_secrets_and_gives_the_same_findings_elsewhere(
    name: str, tmp_path: Path, public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stall.innoscope"
    with Server(name) as server, planted(server):
        assert {*leaks(shown_by(server))} >= {*SECRETS} - _NOT_ALWAYS_SHOWN
        live = innoscope(
            "diagnose",
            "--pid",
            server.pid,
            "-u",
            "root",
            "--seconds",
            4,
            "--no-probes",
            "--json",
            "--save",
            path,
        )

    assert live.returncode == _FOUND, live.stderr
    assert f"saved to {path}" in live.stderr
    _check_contents(path)
    assert leaks(live.stdout + live.stderr) == []
    for part in ("findings", *incident_text.PARTS):
        main(["diagnose", str(path), "--show", part])
        printed = capsys.readouterr()
        assert printed.out.strip()
        assert leaks(printed.out + printed.err) == [], part
    _check_findings_elsewhere(path, public, json.loads(live.stdout))


def _check_contents(path: Path) -> None:
    assert leaks(gzip.decompress(path.read_bytes()).decode()) == []
    capture = files.load(path)
    texts = [statement.text for statement in capture.evidence.statements]
    for begin in ("CREATE SYSTEM_USER ", "SET PASSWORD FOR "):  # newer servers mask the rest
        assert any(text.startswith(begin) for text in texts), texts
    assert capture.status is not None
    assert "*** WE ROLL BACK TRANSACTION" in capture.status
    assert "UPDATE `t` SET `b` = ? WHERE `a` = ?" in capture.status
    assert "END OF INNODB MONITOR OUTPUT" in capture.status
    assert "[row withheld]" in capture.status
    assert capture.variables["init_connect"] == "[withheld]"
    assert int(capture.variables["innodb_buffer_pool_size"]) > 0


def _check_findings_elsewhere(path: Path, public: Path, live: dict[str, object]) -> None:
    """Diagnose the file as nobody, in a namespace without servers."""
    copy = public / path.name
    shutil.copyfile(path, copy)
    there = [*_ELSEWHERE, _MOVE, "sh"]

    python = str(Path(sys.executable).resolve())
    seen = f"hostname; ls /proc | grep -c '^[0-9]'; exec {python} -c 'from bcc import BPF'"
    names = run([*there, "sh", "-c", seen])
    read = run([*there, *nobody("diagnose", copy, "--json")])

    assert names.stdout.split()[0] == "elsewhere" != socket.gethostname()
    assert int(names.stdout.split()[1]) < 10, "processes of this machine are visible"
    assert "cannot import name 'BPF'" in names.stderr
    assert read.returncode == _FOUND, read.stderr
    document = json.loads(read.stdout)
    about = document.pop("file")
    assert about["host"] == socket.gethostname()
    assert document == live
