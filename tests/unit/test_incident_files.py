"""A saved capture is loaded unchanged. Damaged and hostile files are rejected, or read within limits."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
import resource
import stat
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import BadFile, CannotWrite
from innoscope.diagnose.incident import codec, diff_inputs, files
from innoscope.diagnose.incident import text as incident_text
from innoscope.diagnose.incident.model import Capture
from innoscope.sampling.snapshot_history import CLIENT
from unit.captures import capture, drawn, evidence

if TYPE_CHECKING:
    from pathlib import Path

MUTANTS = 1000
#: Maximum seconds to read a damaged file of a few kilobytes; a longer time means that reading hangs.
READ_S = 20
MEMORY_BYTES = 1 << 30
_HOSTILE: tuple[Any, ...] = (
    None, True, -1, 1 << 63, 1 << 70, 1.5, 1e308, -0.0, "", "nan", "\x1b]0;x\x07", "\ud800", "x" * 9999, [],
    {}, [[]], {"": 1}, [None], ["a", 1],
)  # fmt: skip


def packed(value: object, **more: Any) -> bytes:
    whole = {"innoscope_incident": files.VERSION, "capture": value} | more
    return gzip.compress(json.dumps(whole).encode(), 1)


def test_any_capture_can_be_saved_and_loaded(tmp_path: Path) -> None:
    draw = random.Random(7)  # noqa: S311
    for number in range(40):
        original = drawn(Capture, draw)
        path = tmp_path / f"{number}.innoscope"
        files.save(path, original)
        assert files.load(path) == original


def test_file_is_private_complete_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / files.name_for(capture())
    files.save(path, capture())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.name == "mysql-42-20231114T221320Z.innoscope"
    with pytest.raises(CannotWrite, match="it already exists"):
        files.save(path, capture(trigger="again"))
    assert files.load(path) == capture()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for taken in (path, link):
        with pytest.raises(CannotWrite, match="it already exists"):
            files.check_free(taken)
    with pytest.raises(CannotWrite, match="it already exists"):
        files.save(link, capture())
    with pytest.raises(CannotWrite, match="no such directory"):
        files.check_free(tmp_path / "no" / "file")
    with pytest.raises(CannotWrite):
        files.save(tmp_path / "no" / "file", capture())
    files.check_free(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([path, link]), "something was left behind"


def test_file_is_never_overwritten_without_hard_links_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "one"
    files.save(path, capture())
    assert files.load(path) == capture()
    with pytest.raises(CannotWrite, match="it already exists"):
        files.save(path, capture(trigger="again"))
    assert [path] == list(tmp_path.iterdir())


def test_control_characters_are_escaped_and_refused(tmp_path: Path) -> None:
    hostile = capture(status="a\x1b[2Jb\x9bc\u202ed\ud800e\nf")
    files.save(tmp_path / "a", hostile)
    assert files.load(tmp_path / "a").status == "a\\x1b[2Jb\\x9bc\\u202ed\\ud800e\nf"
    unnamed = evidence({"\x1b[2J": 1}, 1)
    assert codec.plain(unnamed).snapshots[0].threads == {(CLIENT, "\\x1b[2J"): 1}
    value = codec.encode(capture())
    for text in ("\x1b[2J", "\x07", "\u202e", "\ud800"):
        (tmp_path / "b").write_bytes(packed(value | {"status": text}))
        with pytest.raises(BadFile, match="control characters"):
            files.load(tmp_path / "b")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated"),
        (b"\x1f\x8b", "truncated"),
        (b"hello", "not an incident file"),
        (b"\x1f\x8bhello", "damaged"),
        (packed({})[:-9], "truncated"),
        (packed({}) + b"x", "data after the end"),
        (packed({}) + packed({}), "data after the end"),
        (gzip.compress(b"[]"), "not an incident file"),
        (gzip.compress(b"\xff"), "not JSON"),
        (gzip.compress(b"[" * 100_000), "not JSON"),
        (gzip.compress(b"9" * 100_000), "not JSON"),
        (packed({}, innoscope_incident=2), "incident version '2'; this innoscope reads version 1"),
        (packed({}, innoscope_incident=["x" * 999]), "incident version"),
        (packed(None), "damaged: Expected `object`, got `null`"),
        (packed({}), "damaged: Object missing required field `taken`"),
        (
            packed(codec.encode(capture()) | {"variables": {"a": 1}}),
            r"variables\[\.\.\.\]: Expected `str`",
        ),
        (
            packed(codec.encode(capture()) | {"evidence": {}}),
            "evidence: Object missing .* field `server`",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_malformed_file_is_refused(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.innoscope"
    path.write_bytes(data)
    with pytest.raises(BadFile, match=problem):
        files.load(path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("pipe", "not a regular file"), (".", "cannot read|not a regular"), ("none", "No such file")],
)
def test_only_regular_files_are_read(name: str, problem: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadFile, match=problem):
        files.load(tmp_path / name)


@pytest.mark.parametrize("much", ["looks", "seen", "waits", "numbers", "rows"])
def test_excessive_evidence_is_refused(much: str, tmp_path: Path) -> None:
    value = codec.encode(capture())
    recorded = value["evidence"]
    snapshot, seen = recorded["looks"][0], recorded["seen"][0]
    row = recorded["answers"]["transactions"][0]
    more: dict[str, dict[str, Any]] = {
        "looks": {"looks": [snapshot] * 5_001},
        "seen": {"seen": [seen] * 5_001},
        "waits": {"looks": [snapshot | {"threads": [[[str(n), ""], 1] for n in range(50)]}] * 4_001},
        "numbers": {"snapshots": [{"at": 0, "values": {str(n): 1 for n in range(126)}}] * 4_001},
        "rows": {"answers": {"transactions": [row] * 200_001}},
    }
    value["before"] = recorded | more[much]
    (tmp_path / "a").write_bytes(packed(value))
    with pytest.raises(BadFile, match=f"too many {much}"):
        files.load(tmp_path / "a")


def test_unknown_and_missing_fields_are_compatible(tmp_path: Path) -> None:
    value = codec.encode(capture())
    value["evidence"]["of_tomorrow"] = [1]
    del value["evidence"]["host"], value["trigger"]
    (tmp_path / "a").write_bytes(packed(value))
    expected = capture(evidence=replace(capture().evidence, host={}))
    assert files.load(tmp_path / "a") == expected


@pytest.mark.parametrize(
    ("text", "times"),
    [(b" ", 100 << 20), (b"[],", 20_000_000), (b"1,", 5_000_000)],
    ids=["big", "lists", "numbers"],
)
def test_compression_bomb_takes_bounded_memory(text: bytes, times: int, tmp_path: Path) -> None:
    path = tmp_path / "bomb.innoscope"
    path.write_bytes(gzip.compress(b"[" + text * times, 1))

    done = _diagnose_with_limited_memory(str(path))

    assert done.returncode == BadFile.exit_code, done.stderr
    assert "contains more than" in done.stderr


def _diagnose_with_limited_memory(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "innoscope.cli.main", "diagnose", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, preexec_fn=_limit, timeout=120, check=False
    )


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def test_largest_accepted_file_takes_bounded_memory(tmp_path: Path) -> None:
    value = codec.encode(capture())
    value["verdict"] = {"lists": [{"a": []}] * (files.MAX_ITEMS // 3 - 1000)}
    path = tmp_path / "full.innoscope"
    path.write_bytes(packed(value))

    done = _diagnose_with_limited_memory(str(path), "--show", "status")

    assert done.returncode == 0, done.stderr


def test_damaged_file_is_read_or_refused(memory_folder: Path) -> None:
    """Replace values at random. The fuzzer (tests/fuzz) changes bytes of the file and of its JSON."""
    draw, path, refused, slowest = random.Random(11), memory_folder / "mutant.innoscope", 0, 0.0  # noqa: S311
    files.save(memory_folder / "good", capture(before=capture().evidence))
    text = gzip.decompress((memory_folder / "good").read_bytes())
    for _ in range(MUTANTS):
        value = json.loads(text)
        for _ in range(draw.choice((1, 1, 3))):
            _replace_value(value["capture"], draw)
        path.write_bytes(gzip.compress(json.dumps(value).encode(), 1))
        began = time.monotonic()
        try:
            _read_all_of(path)
        except BadFile:
            refused += 1
        slowest = max(slowest, time.monotonic() - began)
    assert refused > MUTANTS / 4
    assert slowest < READ_S


def _read_all_of(path: Path) -> None:
    found = files.load(path)
    incident_text.findings(path, found)
    for name in incident_text.PARTS:
        incident_text.part(found, name)
    diff_inputs.of_capture(path, found)


def _replace_value(value: Any, draw: random.Random) -> None:
    """Replace one value at a random position with a hostile one."""
    while isinstance(value, dict | list) and value:
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        if not isinstance(value[key], dict | list) or not value[key] or draw.random() < 0.15:
            value[key] = copy.deepcopy(draw.choice(_HOSTILE))
            return
        value = value[key]
