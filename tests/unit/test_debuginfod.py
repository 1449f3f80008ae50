"""Debug files are downloaded from debuginfod. The tests use a fake server on the loopback interface."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.target.symbols import debuginfod
from innoscope.target.symbols.debuginfod import DebuginfodSettings, fetch, find

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"
BODY = b"\x7fELF" + b"debug" * 1000


class Handler(BaseHTTPRequestHandler):
    """A request handler that sends the response that the test has set."""

    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        status, body, length = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@dataclass
class Module:
    path: str = "/usr/sbin/mysqld"
    symbols_from: str = "dynsym"
    build_id: str | None = BUILD_ID


def modules(*given: Module) -> Any:
    """Return the modules of a process, by default one without symbols."""
    return list(given) or [Module()]


@pytest.fixture
def server() -> Iterator[Any]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.requests, made.answer = [], (200, BODY, len(BODY))  # type: ignore[attr-defined]
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def settings(server: Any, tmp_path: Path) -> DebuginfodSettings:
    return DebuginfodSettings(
        (f"http://127.0.0.1:{server.server_port}",), tmp_path / "cache", 60.0, None, None
    )


@pytest.fixture(autouse=True)
def _any_file_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debuginfod, "_check", lambda path, build_id: None)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_file_is_downloaded_once_into_the_cache_of_elfutils(
    server: Any, settings: DebuginfodSettings
) -> None:
    seen: list[tuple[str, int, int | None]] = []

    first = fetch(modules(), settings, lambda *given: seen.append(given))
    second = fetch(modules(), settings)

    assert first.files == second.files == {BUILD_ID: str(settings.cache / BUILD_ID / "debuginfo")}
    assert server.requests == [f"/buildid/{BUILD_ID}/debuginfo"]
    assert files(settings.cache) == [f"{BUILD_ID}/debuginfo"]
    assert seen[-1] == ("mysqld", len(BODY), len(BODY))


def test_nothing_is_requested_without_the_variable_or_for_modules_with_symbols(
    server: Any, settings: DebuginfodSettings
) -> None:
    assert fetch(modules(), replace(settings, urls=())).files == {}
    assert DebuginfodSettings.of({}).urls == ()
    fetch(modules(Module(symbols_from="symtab"), Module(build_id=None)), settings)

    assert server.requests == []


def test_missing_file_is_not_requested_again_for_a_while(server: Any, settings: DebuginfodSettings) -> None:
    server.answer = (404, b"", 0)

    assert [find(BUILD_ID, settings, "mysqld") for _ in range(3)] == [None] * 3
    assert len(server.requests) == 1
    old = time.time() - 3600
    os.utime(settings.cache / BUILD_ID / "debuginfo", (old, old))
    find(BUILD_ID, settings, "mysqld")
    assert len(server.requests) == 2


def test_error_of_the_server_is_a_note_and_is_not_cached(server: Any, settings: DebuginfodSettings) -> None:
    server.answer = (500, b"", 0)

    found = fetch(modules(), settings)
    fetch(modules(), settings)

    assert found.files == {}
    assert "500" in found.notes[0]
    assert len(server.requests) == 2
    assert files(settings.cache) == []


def test_truncated_answer_leaves_no_file(server: Any, settings: DebuginfodSettings) -> None:
    server.answer = (200, BODY, len(BODY) + 100)

    assert fetch(modules(), settings).files == {}
    assert files(settings.cache) == []


def test_unreachable_server_is_a_note_and_the_next_one_is_tried(settings: DebuginfodSettings) -> None:
    unreachable = "http://127.0.0.1:1"

    assert "refused" in fetch(modules(), replace(settings, urls=(unreachable,))).notes[0]
    assert BUILD_ID in fetch(modules(), replace(settings, urls=(unreachable, *settings.urls))).files


def test_file_that_is_too_large_is_not_downloaded(settings: DebuginfodSettings) -> None:
    found = fetch(modules(), replace(settings, largest=100))

    assert "DEBUGINFOD_MAXSIZE" in found.notes[0]
    assert files(settings.cache) == []


@pytest.mark.parametrize("build_id", ["../../etc/passwd", "xyz", "ABCDEF0123", "01234567/x", ""])
def test_malformed_build_id_never_becomes_a_path(settings: DebuginfodSettings, build_id: str) -> None:
    with pytest.raises(ValueError, match="not a build-id"):
        find(build_id, settings, "mysqld")


def test_malformed_build_id_is_a_note_and_the_next_module_is_tried(settings: DebuginfodSettings) -> None:
    found = fetch(modules(Module(build_id="abc"), Module()), settings)
    assert "not a build-id" in found.notes[0]
    assert BUILD_ID in found.files


def test_interrupt_ends_the_downloads_without_an_error(settings: DebuginfodSettings) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    found = fetch(modules(Module(), Module("/lib/libc.so.6", build_id="ab" * 20)), settings, interrupt)

    assert found.files == {}
    assert "interrupted" in found.notes[0]
    assert files(settings.cache) == []


def test_file_with_another_build_id_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: DebuginfodSettings
) -> None:
    import_module("innoscope._native")
    monkeypatch.undo()

    found = fetch(modules(), settings)

    assert found.files == {}
    assert "ELF" in found.notes[0] or "build-id" in found.notes[0]
    assert files(settings.cache) == []


def test_settings_come_from_the_environment() -> None:
    made = DebuginfodSettings.of(
        {
            "DEBUGINFOD_URLS": "https://a.example/ file:///etc ftp://b.example http://c.example",
            "XDG_CACHE_HOME": "/x",
            "DEBUGINFOD_TIMEOUT": "7",
            "DEBUGINFOD_MAXTIME": "nonsense",
            "DEBUGINFOD_MAXSIZE": "1000",
        }
    )

    assert made.urls == ("https://a.example", "http://c.example")
    assert str(made.cache) == "/x/debuginfod_client"
    assert (made.timeout_s, made.longest_s, made.largest) == (7.0, None, 1000)
    assert str(DebuginfodSettings.of({"DEBUGINFOD_CACHE_PATH": "/y"}).cache) == "/y"
