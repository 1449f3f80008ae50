"""Test how server versions are parsed, and found in memory or in the executable."""

from __future__ import annotations

import io
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from innoscope._native import Symbol
from innoscope.common.errors import BadFile, InnoscopeError, KernelUnable, NoRights, NoSuchProcess
from innoscope.target import native_errors, version
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path


class FakeNativeError(Exception):
    """A stand-in for ``_native.NativeError``."""


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Replace the Rust core with an empty module, to which tests add functions, and return the module."""
    module = ModuleType("innoscope._native")
    module.NativeError = FakeNativeError  # type: ignore[attr-defined]
    monkeypatch.setattr(version, "_native", module)
    monkeypatch.setattr(native_errors, "_native", module)
    return module


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.5.9-log", (5, 5, 9)),
        ("5.6.24", (5, 6, 24)),
        ("9.7.4", (9, 7, 4)),
        ("8.0.36-28", (8, 0, 36)),
        ("10.11.19-MariaDB-0+deb12u1", (10, 11, 19)),
        ("5.5.5-10.11.19-MariaDB", (10, 11, 19)),
        ("11.4.5-MariaDB-log", (11, 4, 5)),
        ("", ()),
        ("1.2.3.4", ()),
        ("OpenSSL 3.0.1", ()),
        ("5.6.24\x01garbage", ()),
    ],
)
def test_version_texts_are_parsed_to_tuples(text: str, expected: tuple[int, ...]) -> None:
    assert version.parse(text) == expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (b"x, for example 10.1.1-MariaDB-precise-log.\0 \x0010.11.19-MariaDB\0x86_64\0", "10.11.19-MariaDB"),
        (b"\0OpenSSL 3.0.17 1 Jul 2025\0GNU C Library 2.36.1\0", None),
        (b"\x003.0.17\x00MySQL 9.7.4\0log", "9.7.4"),
        (b"\0/export/build/sb_0-1-2.24/mysql-5.6.24/sql/mysqld.cc\0", "5.6.24"),
        (b"\0/build/mysql-community-8.0.36/sql/mysqld.cc\0", "8.0.36"),
        (b"", None),
    ],
)
def test_the_version_is_found_in_an_executable(image: bytes, expected: str | None) -> None:
    assert version.search([image]) == expected


@pytest.mark.parametrize("size", range(1, 40))
def test_a_version_across_two_pieces_is_found(size: int) -> None:
    image = b"\x003.0.17\x00/build/mysql-8.0.35/sql/x.cc\0" + bytes(90) + b"\0MySQL 9.7.4\0" + bytes(90)
    assert version.search(version.pieces(io.BytesIO(image), size)) == "9.7.4"


def test_the_executable_is_read_through_proc(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").write_bytes(b"\x7fELF\x0011.4.5-MariaDB-log\x00" + b"11.4.5-MariaDB-log\0")
    found = version.detect(ProcFs(tmp_path), 7, "/usr/sbin/mysqld")
    assert found == version.Version("mariadb", (11, 4, 5), "11.4.5-MariaDB-log", "binary")


def test_an_unreadable_executable_gives_an_unknown_version(tmp_path: Path) -> None:
    found = version.detect(ProcFs(tmp_path), 7, "/usr/sbin/mariadbd")
    assert found == version.Version("mariadb", (), "", "unknown")


def test_the_version_in_memory_is_preferred(native: ModuleType) -> None:
    native.symbol_in_process = lambda pid, names: dict.fromkeys(names, Symbol(4096, 60))  # type: ignore[attr-defined]
    native.read_memory = lambda pid, address, size: b"5.6.24-log".ljust(size, b"\0")  # type: ignore[attr-defined]
    found = version.detect(ProcFs(), 7, "mysqld")
    assert found == version.Version("mysql", (5, 6, 24), "5.6.24-log", "memory")


@pytest.mark.parametrize("raw", [b"", b"garbage", b"\xff" * 60])
def test_memory_that_is_not_a_version_is_ignored(native: ModuleType, raw: bytes) -> None:
    native.symbol_in_process = lambda pid, names: dict.fromkeys(names, Symbol(4096, 60))  # type: ignore[attr-defined]
    native.read_memory = lambda pid, address, size: raw.ljust(size, b"\0")  # type: ignore[attr-defined]
    assert version.from_memory(ProcFs(), 7) is None


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (FakeNativeError("gone", ""), NoSuchProcess),
        (FakeNativeError("rights", "EPERM"), NoRights),
        (FakeNativeError("bpf", "verifier"), KernelUnable),
        (FakeNativeError("elf", "/x: truncated"), BadFile),
        (FakeNativeError("arch", "aarch64"), KernelUnable),
        (FakeNativeError("internal", "?"), InnoscopeError),
        (FakeNativeError("odd"), InnoscopeError),
        (ProcessLookupError(3, "No such process"), NoSuchProcess),
        (PermissionError(1, "Operation not permitted"), NoRights),
        (OSError(14, "Bad address"), InnoscopeError),
    ],
)
@pytest.mark.usefixtures("native")
def test_native_errors_have_a_remedy(raised: Exception, expected: type[InnoscopeError]) -> None:
    with pytest.raises(InnoscopeError) as caught, translating(7):
        raise raised
    assert type(caught.value) is expected
    assert caught.value.remedy
