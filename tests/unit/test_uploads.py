"""Incident files are uploaded once, with a valid signature, even after failures and restarts."""

from __future__ import annotations

import errno
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from innoscope.daemon.agent.config import Config, Watch
from innoscope.daemon.agent.incidents import Incidents
from innoscope.daemon.agent.uploader import Uploader
from innoscope.daemon.push.settings import Upload
from innoscope.daemon.push.sigv4 import AccessKey, canonical_path, signed_headers
from innoscope.daemon.push.uploads import Signer, request

#: The credentials, time and host of the examples in the API reference of Amazon S3 ("Authenticating Requests:
#: Using the Authorization Header", section "Examples: Signature Calculations").
KEY = AccessKey("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
AT = 1_369_353_600  # 2013-05-24T00:00:00Z
HOST = "examplebucket.s3.amazonaws.com"

OLD = "stall-mysql-1-20260101T000000Z.innoscope"
NEW = "stall-mysql-1-20260101T000100Z.innoscope"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "names", "signature"),
    [
        (
            "GET", "/test.txt", {"Range": "bytes=0-9"}, b"", "host;range;x-amz-content-sha256;x-amz-date",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT", "/test$file.text",
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.", "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
    ],
)  # fmt: skip
def test_published_examples_have_these_signatures(
    method: str, path: str, headers: dict[str, str], body: bytes, names: str, signature: str
) -> None:
    found = signed_headers(
        method, canonical_path(path), {**headers, "Host": HOST}, body, KEY, "us-east-1", AT
    )
    assert found["Authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={KEY.key_id}/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={signature}"
    )


def test_paths_are_encoded_once() -> None:
    assert canonical_path("/a b/c%20d/ü~+") == "/a%20b/c%20d/%C3%BC~%2B"


@pytest.mark.parametrize("text", ["", "only-an-id", "a:", ":b", "a:b:", "a:b:c:d"])
def test_malformed_access_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="KEY_ID:SECRET"):
        AccessKey.parse(text)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://s3.example.net/bucket", "s3.example.net"),
        ("https://s3.example.net:443/bucket", "s3.example.net"),
        ("http://s3.example.net:9000/bucket", "s3.example.net:9000"),
        ("http://[::1]:9000/bucket", "[::1]:9000"),
    ],
)
def test_signed_host_is_the_one_that_is_sent(url: str, host: str, tmp_path: Path) -> None:
    signed, secrets = sign(url, tmp_path, "id:secret:token", {"X-Amz-Acl": "private"})
    assert signed["host"] == host
    assert signed["x-amz-security-token"] == "token"
    assert "x-amz-acl;" in signed["Authorization"]
    assert "x-amz-acl" not in signed  # the request already has this header
    assert secrets == ("secret", "token")


def sign(url: str, folder: Path, key: str, headers: dict[str, str]) -> tuple[Any, tuple[str, ...]]:
    (folder / "key").write_text(f"{key}\n")
    upload = Upload(url=url, access_key_file=str(folder / "key"), headers=headers)
    return Signer(upload).sign(request(upload, "db1", NEW, b"x"))


class Store:
    """Context manager: a server that accepts PUT requests on a loopback port.

    The first requests get ``statuses``, one each. For the status 0, the server reads only a part of the body
    and closes the connection.
    """

    def __init__(self, *statuses: int) -> None:
        self.files: dict[str, bytes] = {}
        self.requests = 0
        self._statuses = [*statuses]
        store = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                store.requests += 1
                status = store._statuses.pop(0) if store._statuses else 200
                if not status:
                    self.rfile.read(1)
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if status == 200:
                    store.files[self.path] = body
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/incidents"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.files]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def folder_with(folder: Path, *names: str) -> Watch:
    for name in names:
        (folder / name).write_bytes(name.encode())
    return Watch(directory=str(folder))


def uploader(watch: Watch, store: Store, clock: Clock | None = None) -> Uploader:
    return Uploader(Upload(url=store.url, kind="http"), Incidents(watch), clock or Clock())


def step(one: Uploader) -> float:
    return one.step(threading.Event(), lambda: None)


def counts(one: Uploader) -> dict[str, Any]:
    return {sample.labels[0] if sample.labels else "pending": sample.value for sample in one.samples()}


def test_files_are_uploaded_once_oldest_first_even_by_another_agent(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, NEW, OLD)
    os.utime(tmp_path / OLD, (1, 1))
    with Store() as store:
        first = uploader(watch, store)
        assert step(first) == 5.0
        assert store.names == [OLD, NEW]
        assert store.files[next(iter(store.files))] == OLD.encode()
        assert counts(first) == {"sent": 2, "failed": 0, "refused": 0, "dropped": 0, "pending": 0}
        step(first)
        step(uploader(watch, store))
        assert store.requests == 2


def test_uploader_without_files_beats(tmp_path: Path) -> None:
    ended = threading.Event()
    with Store() as store:
        run = uploader(folder_with(tmp_path), store).run
        thread = threading.Thread(target=run, args=(ended, ended.set), daemon=True)
        thread.start()
        thread.join(10)
    assert not thread.is_alive()


def test_upload_is_repeated_until_the_store_is_back(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, NEW)
    with Store(503, 0, 500) as store:
        one = uploader(watch, store)
        assert [step(one) for _ in range(3)] == [5.0, 10.0, 20.0]
        assert counts(one) == {"sent": 0, "failed": 3, "refused": 0, "dropped": 0, "pending": 1}
        step(uploader(watch, store))  # another agent, after a restart
        assert store.names == [NEW]


def test_killed_store_loses_nothing(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, OLD, NEW)
    with Store(200, 0) as store:
        one = uploader(watch, store)
        step(one)
        assert len(store.names) == 1
    step(one)  # nothing listens
    assert counts(one)["failed"] == 2
    with Store() as again:
        step(uploader(watch, again))
        assert {*store.names, *again.names} == {OLD, NEW}
        assert len(again.names) == 1


def test_refused_file_does_not_delay_others_and_is_tried_again_later(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, OLD, NEW)
    clock = Clock()
    with Store(403) as store:
        one = uploader(watch, store, clock)
        step(one)
        assert len(store.names) == 1
        assert counts(one)["refused"] == 1
        step(one)
        assert store.requests == 2
        clock.now = 301.0
        step(one)
        assert sorted(store.names) == [OLD, NEW]


def test_file_that_keeps_failing_does_not_block_the_others(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, OLD, NEW)
    os.utime(tmp_path / OLD, (1, 1))
    with Store(500, 200, 500) as store:
        one = uploader(watch, store)
        step(one)
        step(one)
        assert store.names == [NEW]
        assert counts(one) == {"sent": 1, "failed": 2, "refused": 0, "dropped": 0, "pending": 1}


def test_unreadable_file_is_logged_counted_and_tried_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = folder_with(tmp_path, OLD, NEW)
    clock = Clock()
    read_bytes = Path.read_bytes

    def damaged(path: Path) -> bytes:
        if path.name == OLD:
            raise OSError(errno.EIO, "Input/output error")
        return read_bytes(path)

    with Store() as store:
        one = uploader(watch, store, clock)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", damaged)
            step(one)
            step(one)
        assert store.names == [NEW]
        assert counts(one) == {"sent": 1, "failed": 1, "refused": 0, "dropped": 0, "pending": 1}
        logged = [vars(one) for one in caplog.records if one.levelname == "WARNING"]
        assert [(one["file"], one["error"]) for one in logged] == [(OLD, "Input/output error")]
        clock.now = 301.0
        step(one)
        assert store.names == [NEW, OLD]


def test_files_deleted_before_the_upload_are_counted(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, OLD, NEW)
    with Store(503) as store:
        one = uploader(watch, store)
        step(one)
        (tmp_path / OLD).unlink()
        step(one)
        assert counts(one)["dropped"] == 1
        assert store.names == [NEW]


def test_state_is_shown_in_the_list_of_incidents(tmp_path: Path) -> None:
    watch = folder_with(tmp_path, NEW)
    incidents = Incidents(watch)
    assert incidents.not_uploaded() == [NEW]
    incidents.set_uploaded(NEW)
    [row] = Incidents(watch).rows()
    assert (row["file"], row["upload"]) == (NEW, "sent")
    assert json.loads((tmp_path / "incidents.json").read_text()) == {NEW: {"upload": "sent"}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "https://s3"}, "needs access_key_file"),
        ({"url": "https://s3", "kind": "http", "access_key_file": "f"}, "vice versa"),
        ({"url": "https://s3", "access_key_file": "f", "bearer_token_file": "t"}, "kind"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Upload(**settings)  # type: ignore[arg-type]


def test_uploads_need_triggers() -> None:
    with pytest.raises(ValueError, match=r"watch\.triggers"):
        Config(upload=Upload(url="http://store", kind="http"))
