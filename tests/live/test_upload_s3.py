"""Test that a captured stall reaches an S3 server that checks signatures and is unavailable at first."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from innoscope.daemon.agent.config import Watch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.uploader import Uploader
from innoscope.daemon.push.settings import Upload
from s3_server import BUCKET, S3
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server
from waiting import until
from workloads import RowLock

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PATIENCE_S = 120
FILE = "stall-mysql-1-20260101T000000Z.innoscope"


def test_stall_is_uploaded_after_the_store_was_killed(folder: Path) -> None:
    key, incidents = folder / "key", folder / "incidents"
    with S3(key) as store:
        store.kill()
        options = (
            f'[upload]\nurl = "{store.url}/{BUCKET}/a$b"\naccess_key_file = "{key}"',
            f'headers = {{ x-amz-meta-team = "dba" }}\n[watch]\ndirectory = "{incidents}"',
            'triggers = ["share.row_lock>0.3"]\nfor_seconds = 0\nseconds = 1\nbefore_seconds = 0',
        )
        with (
            Server("mysql-5.6.24") as server,
            Sensing("--no-probes", only=[server]) as sensing,
            Running(server, sensor=sensing.path, options=options) as agent,
            RowLock(server, 10),
        ):
            agent.until(
                lambda scrape: (scrape.value("uploads_total", outcome="failed") or 0) >= 1, PATIENCE_S
            )
            assert agent.scrape().value("uploads_pending") == 1
            store.start()
            agent.until(lambda scrape: scrape.value("uploads_total", outcome="sent") == 1, PATIENCE_S)
            assert agent.scrape().value("uploads_pending") == 0
        [(name, content)] = until(store.files, within_s=PATIENCE_S).items()
    [path] = incidents.glob("*.innoscope")
    assert name.startswith("a$b/")
    assert name.endswith(f"/{path.name}")
    assert content == path.read_bytes()


def test_wrong_secret_is_refused_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_bytes(b"x")
    key = tmp_path / "key"
    with S3(key) as store:
        key.write_text(store.key[:-1] + ("a" if store.key[-1] != "a" else "b"))
        upload = Upload(url=f"{store.url}/{BUCKET}", access_key_file=str(key))
        uploader = Uploader(upload, Incidents(Watch(directory=str(tmp_path))))
        uploader.step(threading.Event(), lambda: None)
        assert store.files() == {}
    [record] = caplog.records
    reason = record.__dict__["reason"]
    assert "SignatureDoesNotMatch" in reason
    assert key.read_text().partition(":")[2] not in reason
