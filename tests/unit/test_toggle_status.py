"""The status file for the agent is validated when it is read, and its size is bounded."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from innoscope.common import toggle_status
from innoscope.common.samples import by_series
from innoscope.metrics import registry
from innoscope.metrics.collectors import toggles
from innoscope.metrics.collectors.toggles import TogglesFile
from innoscope.metrics.counters import Life
from innoscope.metrics.merge import Merger, ServerOutcomes
from innoscope.target.proc import ProcFs
from innoscope.toggles import status_file
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import ChangeStep
from innoscope.toggles.paths import boot_id
from unit.test_target_sql import target
from unit.toggling import entry

ME = target(start_time=ProcFs().stat(os.getpid()).start_time)
SERVER = replace(entry().server, pid=ME.pid, start_time=ME.start_time, boot_id=boot_id())
CALL = (ChangeStep("malloc_trim(0)", None, None),)


def outcome_of(path: Path, one: Any = ME) -> Any:
    file = TogglesFile(path)
    file.read()
    return file.outcome(one)


@pytest.fixture
def path(memory_folder: Path) -> Path:
    """Write a status file with changes in force, undone, unfinished and failed; return its path."""
    written = memory_folder / "run" / "toggles.json"
    status_file.write(
        written,
        status_file.document([
            entry("a", server=SERVER, outcome="done", until=2000.0),
            entry("b", server=SERVER, toggle="gone", outcome="undone", undone_by="c"),
            entry("c", server=SERVER, toggle="gone", outcome="done", undoes="b"),
            entry("d", server=SERVER, toggle="half", backend="memory", at=1500.0),
            entry("e", server=SERVER, toggle="bad", outcome="failed", put_back=True),
            entry("f", server=SERVER, toggle="call", outcome="done", backend="gdb", steps=CALL),
            entry("g", outcome="done"),
        ]),
    )  # fmt: skip
    return written


def test_everyone_can_read_the_file(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == ["toggles.json"]
    (server,) = json.loads(path.read_text())["servers"]
    assert server["pid"] == ME.pid, "an exited server is left out"


def test_the_agent_exports_the_changes_of_its_server(path: Path) -> None:
    outcome = outcome_of(path)

    assert (outcome.collector, outcome.success) == ("toggles", True)
    assert by_series(outcome.samples) == {
        ("toggle_changes", ("done",)): 3,
        ("toggle_changes", ("undone",)): 1,
        ("toggle_changes", ("failed",)): 1,
        ("toggle_unfinished_changes", ()): 1,
        ("toggle_in_force", ("spin", "sql")): 1,
        ("toggle_since_timestamp_seconds", ("spin",)): 1000,
        ("toggle_until_timestamp_seconds", ("spin",)): 2000,
        ("toggle_info", ("spin", "7", "ann")): 1,
        ("toggle_in_force", ("half", "memory")): 1,
        ("toggle_since_timestamp_seconds", ("half",)): 1500,
        ("toggle_info", ("half", "7", "ann")): 1,
    }


def test_every_sample_is_declared(path: Path) -> None:
    merger = Merger(registry.default())
    outcome = outcome_of(path)

    assert len(merger.merge(ServerOutcomes("3306", Life(1, 1), (outcome,)))) == len(outcome.samples)


def test_other_servers_have_no_changes(path: Path) -> None:
    for other in (replace(ME, start_time=1), replace(ME, pid=1)):
        assert (outcome_of(path, other).success, outcome_of(path, other).samples) == (True, ())


def test_a_missing_file_means_no_changes(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path / "none")

    assert (outcome.success, outcome.samples) == (True, ())


def test_the_number_of_exported_toggles_is_bounded(tmp_path: Path) -> None:
    many = [entry(f"n{at}", server=SERVER, toggle=f"t{at}", at=float(at), outcome="done") for at in range(40)]
    status_file.write(tmp_path / "file", status_file.document(many))
    outcome = outcome_of(tmp_path / "file")
    in_force = [sample for sample in outcome.samples if sample.metric == "toggle_in_force"]

    assert len(in_force) == toggles.MOST
    assert in_force[-1].labels[0] == "t39"
    bound = registry.default()["toggle_in_force"].labels[0].most
    assert bound == toggles.MOST


def test_each_server_has_its_own_changes(tmp_path: Path) -> None:
    parent = os.getppid()
    theirs = replace(SERVER, pid=parent, start_time=ProcFs().stat(parent).start_time)
    two = [entry("a", server=SERVER, outcome="done"), entry("b", server=theirs, outcome="done", value="9")]
    status_file.write(tmp_path / "file", status_file.document(two))
    other = replace(ME, pid=parent, start_time=theirs.start_time)

    assert ("toggle_info", ("spin", "9", "ann")) in by_series(outcome_of(tmp_path / "file", other).samples)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data | {"version": 2},
        lambda data: data | {"more": 1},
        lambda data: data | {"servers": {}},
        lambda data: data["servers"][0].update(pid="1") or data,
        lambda data: data["servers"][0]["changes"].pop("done") and data,
        lambda data: data["servers"][0]["toggles"][0].update(way="magic") or data,
        lambda data: data["servers"][0]["toggles"][0].update(who="a\nb") or data,
        lambda data: data["servers"][0]["toggles"][0].update(since=float("nan")) or data,
        lambda data: data["servers"][0]["toggles"][0].update(who="a\ud800") or data,
        lambda data: data["servers"][0].update(pid=True) or data,
        lambda data: data["servers"][0].update(more=1) or data,
        lambda data: data["servers"][0]["changes"].update(done=-1) or data,
        lambda _: [],
    ],
)
def test_an_invalid_value_is_an_error(path: Path, change: Any) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    outcome = outcome_of(path)

    assert (outcome.success, outcome.samples) == (False, ())
    assert outcome.reason.startswith("error: ")


def test_an_unsafe_or_malformed_file_is_an_error(path: Path) -> None:
    path.chmod(0o666)
    assert "world-writable" in outcome_of(path).reason
    path.write_bytes(b"[" * 300_000)
    path.chmod(0o644)
    assert "too large" in outcome_of(path).reason
    path.write_bytes(b"[" * 200_000)
    assert "Expected `object`, got `array`" in outcome_of(path).reason
    path.write_bytes(b"{")
    assert "as JSON" in outcome_of(path).reason
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in outcome_of(path).reason


def test_an_unwritable_status_file_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    status_file.publish(Journal(tmp_path / "state"), tmp_path / "file" / "toggles.json")


def test_the_environment_sets_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INNOSCOPE_RUN", raising=False)
    assert toggle_status.status_path() == Path("/run/innoscope/toggles.json")
    monkeypatch.setenv("INNOSCOPE_RUN", "/tmp/x")  # noqa: S108
    assert toggle_status.status_path() == Path("/tmp/x/toggles.json")  # noqa: S108
