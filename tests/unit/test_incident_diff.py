"""`diff` shows significant differences between captures, dumps, recordings or profiles, and hides noise."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.main import main
from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.diagnose.evidence import Evidence, MissingSource
from innoscope.diagnose.incident import diff_inputs, diff_report, files
from innoscope.diagnose.incident.diff import Differences, compare
from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Snapshot
from innoscope.sampling.recording import RecordingWriter
from innoscope.sampling.render.json import line, profile_line
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary
from unit.captures import capture, evidence
from unit.snapshots import IDLE, ROW_LOCK, frames, thread
from unit.snapshots import target as made_target

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CALM = {"idle": 20, "on_cpu": 2}
STALLED = {"idle": 10, "on_cpu": 1, "row_lock": 11}
PAIRS = 150


def differences(
    tmp_path: Path, *both: Evidence, variables: Sequence[dict[str, str]] = ({}, {})
) -> Differences:
    found = []
    for name, one, of_it in zip("ab", both, variables, strict=True):
        path = tmp_path / name
        path.unlink(missing_ok=True)
        files.save(path, capture(evidence=one, variables={"max_connections": "151"} | of_it))
        found.append(diff_inputs.open_side(path))
    a, b = found
    return compare(a, b)


def counter(rate: float, snapshots: int = 10) -> list[float]:
    return [1000 + number * rate for number in range(snapshots)]


def test_stall_differs_in_findings_waits_stacks_metrics_and_variables(tmp_path: Path) -> None:
    before = evidence(CALM, row_lock_waits=counter(2), connections=22, history_list_length=50)
    after = evidence(STALLED, row_lock_waits=counter(300), connections=22, history_list_length=55)

    found = differences(
        tmp_path,
        before,
        after,
        variables=({"x": "1", "gone": "2", "gtid_executed": "1-5"}, {"x": "3", "gtid_executed": "1-9"}),
    )

    assert [(one.name, one.change) for one in found.findings] == [("row_lock_convoy", "new")]
    assert [(one.wait, one.a, one.b) for one in found.waits] == [
        ("row_lock", 0.0, 11.0),
        ("idle", 20.0, 10.0),
    ]
    assert [(one.wait, one.functions[-1]) for one in found.stacks] == [("row_lock", "row_lock")]
    assert [(one.series, one.kind, one.a, one.b) for one in found.metrics] == [
        ("row_lock_waits", "rate", 2.0, 300.0)
    ]
    assert [(one.name, one.a, one.b) for one in found.variables] == [("gone", "2", None), ("x", "1", "3")]
    assert found.notes == ()


def test_different_numbers_of_snapshots_are_compared_by_their_means(tmp_path: Path) -> None:
    waits = {"idle": 400, "row_lock": 30}
    assert not differences(tmp_path, evidence(waits, snapshots=1), evidence(waits, snapshots=20))
    grown = differences(tmp_path, evidence(CALM, snapshots=1), evidence(waits, snapshots=20))
    assert [one.wait for one in grown.waits] == ["row_lock", "idle"]
    assert any("a single snapshot shows one moment only" in note for note in grown.notes)


def test_few_threads_of_a_single_snapshot_are_not_a_difference(tmp_path: Path) -> None:
    busier = CALM | {"row_lock": 5}
    assert not differences(tmp_path, evidence(CALM, snapshots=1), evidence(busier, snapshots=1)).waits
    assert differences(tmp_path, evidence(CALM), evidence(busier)).waits


def test_noise_is_not_a_difference(memory_folder: Path) -> None:
    """Compare random snapshots and counters of the same busy server."""
    draw = random.Random(5)  # noqa: S311
    for _ in range(PAIRS):
        found = differences(memory_folder, _drawn(draw), _drawn(draw))
        assert (found.waits, found.metrics) == ((), ())


def _drawn(draw: random.Random) -> Evidence:
    """Return random evidence with up to 16 threads in each of three classes."""
    snapshots = draw.choice((1, 3, 10, 20))
    total, counts = 0.0, []
    for _ in range(snapshots + 1):
        total += sum(draw.random() < 0.1 for _ in range(60))
        counts.append(total)
    base = evidence(
        {}, snapshots + 1, row_lock_waits=counts, connections=[draw.randrange(8, 12) for _ in counts]
    )
    each = tuple(
        SnapshotSummary(
            1000.0 + number,
            {
                (CLIENT, wait): sum(draw.random() < 0.25 for _ in range(16))
                for wait in ("on_cpu", "mutex_wait", "idle")
            },
        )
        for number in range(snapshots)
    )
    return replace(base, snapshots=each)


def test_metrics_must_differ_by_more_than_their_spread(tmp_path: Path) -> None:
    quick, slow = (
        [Histogram((number,), number * each) for number in range(0, 200, 20)] for each in (1_000, 9_000_000)
    )
    before = evidence(
        CALM,
        history_list_length=[10, 2000] * 5,
        checkpoint_age_ratio=0.2,
        deadlocks=counter(0.2),
        fsync_seconds=quick,
    )
    after = evidence(
        CALM,
        history_list_length=[1500, 90_000] * 5,
        checkpoint_age_ratio=0.9,
        deadlocks=counter(1),
        fsync_seconds=slow,
    )

    found = differences(tmp_path, before, after).metrics

    assert [(one.series, one.kind) for one in found] == [
        ("fsync_seconds", "mean"),
        ("checkpoint_age_ratio", "level"),
    ]
    assert found[0].b == pytest.approx(0.009)


def series(waiting: int, count: int) -> list[Snapshot]:
    threads = [thread(1 + number) for number in range(20)]
    threads += [thread(100 + number, ROW_LOCK, "row_lock") for number in range(waiting)]
    return [Snapshot(made_target(), "bpf", 1000.0 + at, 1.0, tuple(threads)) for at in range(count)]


@pytest.mark.parametrize("kind", ["json", "json.gz", "rec", "profile"])
def test_dumps_recordings_and_profiles_can_be_compared(kind: str, tmp_path: Path) -> None:
    found = []
    for waiting in (0, 40):
        path, snapshots = tmp_path / f"{waiting}.{kind}", series(waiting, 3)
        if kind == "rec":
            with RecordingWriter(path, interval_s=1) as recorder:
                for snapshot in snapshots:
                    recorder.write(snapshot)
        elif kind == "profile":
            report = StackReport(made_target())
            for snapshot in snapshots:
                report.add(snapshot)
            path.write_text(profile_line(report) + "\n")
        else:
            text = "".join(f"{line(snapshot)}\n" for snapshot in snapshots).encode()
            path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
        found.append(diff_inputs.open_side(path))
    a, b = found
    result = compare(a, b)

    assert [side.snapshots for side in found] == [3, 3]
    assert [(one.wait, one.a, one.b) for one in result.waits] == [("row_lock", 0.0, 40.0)]
    assert result.stacks[0].functions == tuple(frame.label for frame in ROW_LOCK)
    assert IDLE[0].label not in str(result.stacks)
    assert result.notes == ()


@pytest.mark.parametrize("as_profile", [False, True])
def test_control_characters_of_a_forged_dump_are_escaped(as_profile: bool, tmp_path: Path) -> None:
    hostile = frames("poll\x1b[2J", "do_command\u202e")
    snapshot = replace(series(0, 1)[0], threads=tuple(thread(n, hostile, "\x1b]0;x\x07") for n in range(50)))
    report = StackReport(made_target())
    report.add(snapshot)
    (tmp_path / "a").write_text((profile_line(report) if as_profile else line(snapshot)) + "\n")
    (tmp_path / "b").write_text(line(series(0, 1)[0]) + "\n")
    a, b = (diff_inputs.open_side(tmp_path / name) for name in "ab")
    output = "\n".join(diff_report.text(a, b, compare(a, b), 9))
    assert r"poll\x1b[2J,do_command\u202e" in output
    assert not set(output) & {"\x1b", "\x07", "\u202e"}


def test_different_versions_and_kinds_are_compared_partially(tmp_path: Path) -> None:
    other = replace(evidence(STALLED), server={"flavour": "mariadb", "version": "11.4.5", "pid": "1"})
    found = differences(
        tmp_path, evidence(CALM), other, variables=({"x": "1", "y": "1"}, {"x": "2", "z": "1"})
    )
    assert found.stacks == ()
    assert [one.name for one in found.variables] == ["x"]
    assert any("different versions" in note for note in found.notes)
    dump = tmp_path / "dump"
    dump.write_text(line(series(0, 1)[0]) + "\n")
    mixed = compare(diff_inputs.open_side(dump), diff_inputs.open_side(tmp_path / "b"))
    assert sum("are not compared" in note for note in mixed.notes) == 4


def test_finding_that_the_other_side_cannot_have_is_uncertain(tmp_path: Path) -> None:
    blind = replace(evidence({}, 0), missing={"looks": MissingSource("denied", "no rights")})
    found = differences(tmp_path, blind, evidence(STALLED))
    assert [(one.name, one.change) for one in found.findings] == [("row_lock_convoy", "new?")]
    assert any("has no snapshots" in note for note in found.notes)


def test_command_shows_the_differences_as_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm, stall = str(tmp_path / "calm"), str(tmp_path / "stall")
    files.save(tmp_path / "calm", capture(evidence=evidence(CALM)))
    files.save(tmp_path / "stall", capture(evidence=evidence(STALLED), before=evidence(CALM)))

    assert main(["diff", calm, calm]) == 0
    assert "No significant difference." in capsys.readouterr().out
    assert main(["diff", calm, stall, "--limit", "1"]) == 19
    out = capsys.readouterr().out
    assert "  new   11 threads wait for row locks  [row_lock_convoy]" in out
    assert "      0.0 → 11.0    new  row lock" in out
    assert "… and 1 more: --limit 2" in out
    assert main(["diff", stall]) == 19
    assert main(["diff", calm, stall, "--json"]) == 19
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["version"] == diff_report.VERSION
    assert record["waits"][0] == {"clients": True, "wait": "row_lock", "a": 0.0, "b": 11.0, "functions": []}
    assert main(["diff", calm]) == BadFile.exit_code
    assert "has no evidence from before the stall" in capsys.readouterr().err


def test_damaged_profiles_and_dumps_are_refused(memory_folder: Path) -> None:
    draw, path = random.Random(3), memory_folder / "mutant"  # noqa: S311
    report = StackReport(made_target())
    report.add(series(3, 1)[0])
    for text in (profile_line(report), line(series(3, 1)[0])):
        refused = 0
        for _ in range(300):
            data = bytearray(text.encode())
            for _ in range(draw.choice((1, 3))):
                data[draw.randrange(len(data))] = draw.choice(b'0123456789[]{},:"-.eEnul\\\x00\xff')
            path.write_bytes(bytes(data) + b"\n")
            try:
                diff_inputs.open_side(path)
            except BadFile:
                refused += 1
        assert refused > 30
