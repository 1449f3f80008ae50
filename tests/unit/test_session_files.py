"""Damaged and hostile files of the history are reported; links and pipes are not opened."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import duckdb
import pytest

from innoscope import _native
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from unit.session_samples import START, Clock, batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def store(folder: Path, clock: Clock) -> HistoryStore:
    made = HistoryStore(folder, HistoryLimits(), clock, clock)
    made.prepare()
    return made


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda raw: b"",
        lambda raw: raw[:7],
        lambda raw: b"PAR1" + b"\xff" * 8 + b"PAR1",
        lambda raw: raw[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1",
        lambda raw: raw[:-100] + bytes(92) + raw[-8:],
        lambda raw: raw[:4] + bytes(len(raw) // 2) + raw[4 + len(raw) // 2 :],
    ],
)
def test_hostile_file_is_reported(tmp_path: Path, corrupt: Callable[[bytes], bytes]) -> None:
    one = store(tmp_path, Clock())
    for second in range(200):
        one.add("orders", batch(START + second))
    one.close()
    (part,) = files.live_parts(tmp_path)
    path = part.file("samples")
    path.write_bytes(corrupt(path.read_bytes()))
    _, _, _, failed = _native.history_group(
        "samples", [path], span=(0, 1 << 62), by=["wait", "digest", "tid"], filters=[], most_groups=10
    )
    assert [name for name, _ in failed] == [path]


#: Hostile footers: a list that claims 2^31 - 1 booleans, which the Parquet library would count without
#: reading any bytes, and a schema whose root claims too many children.
_BOOLEANS = b"\xf9\xf1\xff\xff\xff\xff\x07\0"
_CHILDREN = b"\x29\x1c\x48\x01a\x15\xfe\xff\xff\xff\x0f\0\0"


@pytest.mark.parametrize(
    "footer", [_BOOLEANS, _CHILDREN, b"\0\0"], ids=["booleans", "children", "bytes after its end"]
)
def test_malformed_footer_is_not_decoded(tmp_path: Path, footer: bytes) -> None:
    path = tmp_path / "samples.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(_native.NativeError, match="the footer is malformed"):
        _native.history_check("samples", path)


_NUMBER = rb"([\x80-\xff]*[\x00-\x7f])"
#: The header of a dictionary page: page type, uncompressed and compressed size, and number of values.
_HEADER = re.compile(rb"\x15\x04\x15" + _NUMBER + rb"\x15" + _NUMBER + rb"\x4c\x15" + _NUMBER)


def _encoded(number: int) -> bytes:
    """Encode an integer in Thrift's compact protocol."""
    found, number = bytearray(), 2 * number
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _decoded(raw: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(raw)) // 2


@pytest.mark.parametrize("field", ["uncompressed size", "number of values"])
def test_page_that_claims_gigabytes_is_not_decoded(tmp_path: Path, field: str) -> None:
    """Enlarge the header at the expense of the page, so that all offsets remain valid."""
    one = store(tmp_path, Clock())
    for second in range(200):
        one.add("orders", batch(START + second))
    one.close()
    (part,) = files.live_parts(tmp_path)
    path = part.file("samples")
    raw = path.read_bytes()
    found = _HEADER.match(raw, len(b"PAR1"))
    assert found is not None
    size, packed, values = (_decoded(one) for one in found.groups())
    claimed = (2**31 - 1, values) if field == "uncompressed size" else (size, 2**31 - 1)
    growth = sum(len(_encoded(one)) for one in claimed) - len(_encoded(size)) - len(_encoded(values))
    numbers = (_encoded(one) for one in (claimed[0], packed - growth, claimed[1]))
    header = b"\x15\x04\x15%b\x15%b\x4c\x15%b" % tuple(numbers)
    rest = raw[found.end() :]
    end = rest.index(b"\0\0") + 2  # the end of the header
    path.write_bytes(raw[: found.start()] + header + rest[:end] + rest[end + growth :])
    assert path.stat().st_size == len(raw)
    groups, _, _, failed = _native.history_group(
        "samples", [path], span=(0, 1 << 62), by=["wait"], filters=[], most_groups=10
    )
    assert (groups, failed) == ([], [(path, "it is too large for its number of bytes")])
    with pytest.raises(_native.NativeError, match="too large for its number of bytes"):
        _native.history_check("samples", path)


def test_file_of_another_table_is_refused(tmp_path: Path) -> None:
    one = store(tmp_path, Clock())
    one.add("orders", batch(START))
    one.close()
    (part,) = files.live_parts(tmp_path)
    with pytest.raises(_native.NativeError, match="other columns"):
        _native.history_check("samples", part.file("stacks"))


def test_links_and_pipes_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises((OSError, _native.NativeError)):
        _native.history_check("samples", tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        _native.history_check("samples", tmp_path / "link")


@pytest.mark.parametrize("content", ["", "[]", '{"orders": "1"}', '{"orders": true}', "\xff", "[" * 100_000])
def test_damaged_cursor_is_ignored(tmp_path: Path, content: str) -> None:
    one = store(tmp_path, Clock())
    one.cursor = {"orders": 1}
    one.add("orders", batch(START))
    one.close()
    (part,) = files.live_parts(tmp_path)
    (part.path / "cursor.json").write_text(content)
    (tmp_path / ".lock").unlink()
    assert store(tmp_path, Clock()).cursor == {}


def test_any_program_can_read_the_texts_and_join_the_tables(tmp_path: Path) -> None:
    """Read the files with DuckDB alone, to check that the text in the files is already escaped."""
    evil = "a\x1b[2J\u202e\nb"
    stack = f"{evil}::wait", "do_command"
    hostile = SharedValues(evil, evil, evil, "0" * 32, evil, evil, evil, "1" * 32, evil, evil, stack)
    clock = Clock()
    one = store(tmp_path, clock)
    for minute in (0, 10):  # two parts
        sampled = Sampled(int((START + 60 * minute) * 1e6), 1.0, [1], [0], [1], [None])
        one.add(evil, Batch([hostile], [sampled], {"0" * 32: f"SELECT `{evil}`"}))
        clock.now += 610
        one.tick()
    files_of = {table: f"'{tmp_path}/*/{table}.parquet'" for table in files.TABLES}
    query = (
        "SELECT server, kind, user, schema, command, wait, object, statement_trust, stack_trust, text, "
        f"functions FROM {files_of['samples']} "
        f"JOIN (SELECT DISTINCT * FROM {files_of['stacks']}) USING (stack) "
        f"JOIN (SELECT DISTINCT * FROM {files_of['digests']}) USING (digest)"
    )
    found = duckdb.connect().execute(query).fetchall()

    shown = r"a\x1b[2J\u202e\nb"
    row = (*[shown] * 9, f"SELECT `{shown}`", [f"{shown}::wait", "do_command"])
    assert found == [row] * 2
