"""Changes with a time limit are undone by a timer or a helper process, and problems are reported."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.target.credentials import LoginOptions
from innoscope.toggles import engine, expiry, expiry_main, lock, undo
from innoscope.toggles.expiry_main import PendingUndo
from innoscope.toggles.journal_format import ServerId
from innoscope.toggles.model import ChangeRefused
from innoscope.toggles.paths import boot_id
from unit.toggling import ACCOUNT, BEFORE, entry, world

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.toggles.journal_format import JournalEntry
    from unit.toggling import World

__all__ = ["world"]

PATIENCE_S = 20


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def apply(world: World, seconds: float = 60.0) -> JournalEntry:
    plan = world.plan()
    return engine.apply(world.target, plan, who="ann", seconds=seconds, deps=world.deps, account=ACCOUNT)


def watch(world: World, ident: str, maker: int | None = None) -> PendingUndo:
    life = (world.target.pid, world.target.start_time, boot_id())
    return PendingUndo(ident, world.deps, life, maker or os.getpid())


def test_a_change_is_undone_at_the_end_of_its_time(world: World) -> None:
    change = apply(world)
    watching = watch(world, change.id)
    assert not watching.moot()
    watching.wait(time.clock_gettime(time.CLOCK_BOOTTIME))
    watching.undo(ACCOUNT)

    assert world.values == BEFORE
    undone, undo = world.journal.entries()
    assert (undone.outcome, undo.who, undo.why) == ("undone", "innoscope", "expired")
    assert watching.moot()


def test_a_failed_undo_is_noted_and_repeated(world: World) -> None:
    change = apply(world)
    world.facts = {"stopped": 1}
    watching = threading.Thread(target=watch(world, change.id).undo, args=(ACCOUNT,))
    watching.start()
    wait_until(lambda: world.journal.entries()[0].notes)
    assert "are stopped" in world.journal.entries()[0].notes[0]
    world.facts = {}
    watching.join(PATIENCE_S)

    assert world.values == BEFORE


def test_the_undo_waits_for_the_lock(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    change = apply(world)
    refused = threading.Event()

    def noting(*arguments: Any, **options: Any) -> JournalEntry:
        try:
            return undo.undo(*arguments, **options)
        except lock.AlreadyLocked:
            refused.set()
            raise

    monkeypatch.setattr(expiry_main, "undo", noting)
    with lock.held(world.journal.folder, change.server):
        watching = threading.Thread(target=watch(world, change.id).undo, args=(ACCOUNT,))
        watching.start()
        assert refused.wait(PATIENCE_S)
        assert world.values != BEFORE
    watching.join(PATIENCE_S)

    assert world.values == BEFORE
    assert world.journal.entries()[0].notes == ()


def test_a_later_value_is_not_overwritten_and_a_note_says_so(world: World) -> None:
    change = apply(world)
    world.set(spin=8)
    watch(world, change.id).undo(ACCOUNT)

    assert world.values["spin"] == 8
    assert "it has since changed" in world.journal.entries()[0].notes[0]


def test_the_undo_is_moot_when_the_server_has_ended(world: World) -> None:
    watching = watch(world, apply(world).id)
    world.process.kill()
    world.process.wait()

    assert watching.moot()
    watching.undo(ACCOUNT)
    assert world.values != BEFORE


def test_the_undo_is_moot_if_the_change_was_killed_before_it_began(world: World) -> None:
    with subprocess.Popen(["sleep", "600"]) as maker:
        watching = watch(world, "0a1b2c3d", maker.pid)
        assert not watching.moot()
        maker.kill()
    assert watching.moot()


def _helpers(ident: str) -> list[int]:
    """Return the pids of helper processes that are waiting for this change to expire."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if ident.encode() in arguments and b"innoscope.toggles.expiry_main" in arguments:
            found.append(int(folder.name))
    return found


@pytest.fixture
def no_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SYSTEMD", tmp_path / "none")


@pytest.mark.usefixtures("no_systemd")
def test_a_detached_helper_ends_when_the_change_is_undone(world: World) -> None:
    plan = world.plan()
    deps = world.deps
    deps = type(deps)(deps.journal, deps.toggles, deps.writer, deps.facts, expiry, deps.publish)
    change = engine.apply(world.target, plan, who="ann", seconds=600, deps=deps, account=ACCOUNT)
    (helper,) = _helpers(change.id)
    stat = Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()
    assert int(stat[3]) != os.getsid(0), "it would end with our terminal"
    assert int(stat[1]) != os.getpid(), "it would become our zombie"
    files = [Path(f"/proc/{helper}/fd/{number}") for number in range(3)]
    wait_until(lambda: {str(file.readlink()) for file in files} == {os.devnull})
    engine.undo(None, change.id, account=ACCOUNT, who="bob", deps=deps)

    wait_until(lambda: not _helpers(change.id))


@pytest.mark.usefixtures("no_systemd")
def test_a_helper_ends_with_the_server(world: World) -> None:
    change = entry(server=_server_of(world), until=time.time() + 600)
    expiry.arm(change, ACCOUNT, world.journal.folder)
    world.journal.intend(change)
    assert _helpers(change.id)
    world.process.kill()
    world.process.wait()

    wait_until(lambda: not _helpers(change.id))


@pytest.mark.usefixtures("no_systemd")
def test_a_helper_that_cannot_start_is_an_error(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ChangeRefused, match="nothing was changed") as caught:
        expiry.arm(entry(server=_server_of(world), until=1.0), ACCOUNT, world.journal.folder)
    assert "--for" in str(caught.value.remedy)

    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(ChangeRefused, match="did not start"):
        expiry.arm(entry(server=_server_of(world), until=1.0), ACCOUNT, world.journal.folder)


def _server_of(world: World) -> ServerId:
    return ServerId.of(world.target, boot_id())


_SYSTEMD_RUN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done > {arguments}
exit {code}
"""


@pytest.mark.parametrize("code", [0, 1])
def test_systemd_is_given_a_transient_timer(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    arguments = tmp_path / "arguments"
    for name in ("systemd-run", "systemctl"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(_SYSTEMD_RUN.format(arguments=f"{arguments}-{name}", code=code))
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(expiry, "SYSTEMD", tmp_path)
    change = entry(server=_server_of(world), until=time.time() + 600)
    if code:
        with pytest.raises(ChangeRefused, match="nothing was changed"):
            expiry.arm(change, LoginOptions(), world.journal.folder)
        return
    expiry.arm(change, LoginOptions("my.cnf", "dba"), world.journal.folder)
    expiry.disarm(change.id)

    words = Path(f"{arguments}-systemd-run").read_text().splitlines()
    assert f"--unit=innoscope-undo-{change.id}" in words
    (active,) = (word for word in words if word.startswith("--on-active="))
    assert float(active.partition("=")[2].removesuffix("s")) == pytest.approx(600, abs=5)
    assert words[-1] == "--foreground"
    assert words[words.index("--defaults-file") + 1] == str(Path.cwd() / "my.cnf")
    assert Path(f"{arguments}-systemctl").read_text().split() == ["stop", f"innoscope-undo-{change.id}.timer"]
