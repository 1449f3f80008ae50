"""Recordings are read as they were written; truncation, damage and a full disk are reported."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import BadFile, CannotWrite
from innoscope.sampling.model import Frame, Snapshot, Thread, Trust
from innoscope.sampling.recording import Recording, RecordingWriter
from innoscope.sampling.render.json import document
from innoscope.target.model import Query
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

TARGET = target(start_time=9, version_from="memory", socket="/run/m.sock", datadir="/data")
IDLE = (
    Frame("poll", "libc.so.6", 0x10),
    Frame("do_command(THD*)", "mysqld", 0x20),
    Frame(None, "mysqld", 0x30),
)
LOCK = (
    Frame("lock_wait_suspend_thread", "mysqld", 0x40, inlined=True),
    Frame("futex", "kernel", 0, kernel=True),
)
QUERY = Query(
    7, "app", "10.0.0.1", "shop", "Query", "updating", 3, 'UPDATE "t" SET `b` = ? -- "wait":"fake" ÿ☃'
)


def snapshot(number: int) -> Snapshot:
    threads = (
        Thread(1, 1, "mysqld", "S", Trust.EXACT, "idle", IDLE, 7),
        Thread(2, 12, "mysqld", "S", Trust.EXACT, "idle", IDLE, 7),
        Thread(3, 3, "connection", "R", Trust.STALE, "row_lock", LOCK, None, QUERY),
        Thread(4, 4, "empty", "D", Trust.INCOMPLETE, "other", ()),
    )
    return Snapshot(TARGET, "bpf", 1_700_000_000.5 + number, 4.25, threads, ("a note",))


def record(path: Path, snapshots: int = 3) -> Path:
    with RecordingWriter(path, interval_s=1) as recorder:
        for number in range(snapshots):
            recorder.write(snapshot(number))
    return path


def parsed(recording: Recording) -> list[Snapshot]:
    return [recording.snapshot(number) for number in range(len(recording))]


@pytest.fixture(params=["a.rec", "a.rec.gz"], ids=["plain", "gzip"])
def path(request: pytest.FixtureRequest, memory_folder: Path) -> Path:
    return memory_folder / str(request.param)


def test_a_recording_is_read_as_it_was_written(path: Path) -> None:
    recording = Recording(record(path))
    assert parsed(recording) == [snapshot(number) for number in range(3)]
    assert recording.notes == ()
    assert recording.header["interval_s"] == 1
    assert recording.waits == [{"idle": 2, "row_lock": 1, "other": 1}] * 3
    first, second = recording.snapshot(0).threads[:2]
    assert first.frames is second.frames


def test_bytes_that_are_not_utf8_are_kept(tmp_path: Path) -> None:
    target = replace(TARGET, datadir="/data/\udcff")
    written = replace(snapshot(0), target=target)
    with RecordingWriter(tmp_path / "a.rec", interval_s=1) as recorder:
        recorder.write(written)
    assert parsed(Recording(tmp_path / "a.rec")) == [written]


def test_each_line_is_the_json_document(path: Path) -> None:
    record(path)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    header, *lines = text.decode().splitlines()
    assert json.loads(header)["innoscope_recording"] == 1
    assert [json.loads(line) for line in lines] == [document(snapshot(number)) for number in range(3)]


def test_a_truncated_file_is_readable_up_to_the_cut(path: Path) -> None:
    """Truncate the file at each byte. Complete snapshots are readable; a note reports a truncated one."""
    whole = record(path, 2).read_bytes()
    complete = 0
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        try:
            recording = Recording(path)
        except BadFile:
            assert size < 200  # the cut is within the header
            continue
        assert parsed(recording) == [snapshot(0), snapshot(1)][: len(recording)]
        complete += not recording.notes
    assert complete <= 5  # there is no note if the cut is at the end of a line


def test_each_snapshot_is_in_the_file_as_soon_as_it_is_written(path: Path) -> None:
    """Read the file after each write, because a killed recorder must leave a readable file."""
    with RecordingWriter(path, interval_s=1) as recorder:
        for number in range(3):
            recorder.write(snapshot(number))
            assert parsed(Recording(path))[-1] == snapshot(number)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = record(tmp_path / "a.rec")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + b"\x00\xffgarbage\n" + lines[3])
    with pytest.raises(BadFile, match="line 3: damaged"):
        Recording(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b'"threads":[', b'"threads":['), "missing"),
        ((b'"exact"', b'"certain"'), "certain"),
        ((b'"schema":1', b'"schema":9'), "schema 9"),
        ((b'"tid":1,', b'"tid":"x",'), "x"),
    ],
    ids=["missing key", "unknown trust", "other schema", "not a number"],
)
def test_an_invalid_snapshot_is_named_when_it_is_read(
    tmp_path: Path, change: tuple[bytes, bytes], why: str
) -> None:
    path = record(tmp_path / "a.rec")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(*change) if change[0] != change[1] else lines[2].replace(b'"comm"', b'"name"')
    path.write_bytes(b"".join(lines))
    recording = Recording(path)
    recording.snapshot(0)
    with pytest.raises(BadFile, match=f"line 3: not a snapshot.*{why}"):
        recording.snapshot(1)


def test_damaged_compression_is_reported_with_the_line(tmp_path: Path) -> None:
    path = record(tmp_path / "a.rec.gz", 50)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(BadFile, match=r"line \d+"):
        parsed(Recording(path))


def test_a_file_that_gzip_compressed_is_read(tmp_path: Path) -> None:
    plain = record(tmp_path / "a.rec")
    packed = tmp_path / "other-name"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(Recording(packed)) == 3


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"hello\n", "not an Innoscope recording"),
        (b"{}\n", "not an Innoscope recording"),
        (b"[" * 100_000, "empty or truncated"),
        (b'{"innoscope_recording":2}\n', "version 2"),
        (b"\x1f\x8b", "empty or truncated"),
    ],
    ids=["empty", "text", "other json", "deep json", "newer", "gzip magic only"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "a.rec"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=why):
        Recording(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        Recording(tmp_path / "absent")
    with pytest.raises(BadFile, match="directory"):
        Recording(tmp_path)


def test_an_earlier_recording_is_not_overwritten(path: Path) -> None:
    before = record(path).read_bytes()
    with pytest.raises(CannotWrite, match="it exists"):
        RecordingWriter(path, interval_s=1)
    assert path.read_bytes() == before


def test_only_the_owner_can_read_a_recording(path: Path) -> None:
    assert record(path).stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    recorder = RecordingWriter(tmp_path / "a.rec", interval_s=1)
    recorder._file = open("/dev/full", "wb")  # noqa: SIM115, PTH123
    with pytest.raises(CannotWrite, match="No space left"):
        recorder.write(snapshot(0))


def test_a_time_selects_the_last_snapshot_before_it(path: Path) -> None:
    recording = Recording(record(path))
    assert [recording.at(1_700_000_000.5 + offset) for offset in (-5, 0, 0.9, 1, 99)] == [0, 0, 0, 1, 2]
