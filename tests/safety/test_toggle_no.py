"""What must not be done to real servers is refused, with its reason, and nothing is written.

What goes wrong around a change (restarts, crash recovery, disks) is in test_toggle_faults, what must not be
written to memory in test_toggle_refusals.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import NoRights
from innoscope.common.versions import VersionRange
from innoscope.target.discover import find_one
from innoscope.toggles import catalog, engine, lock
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.journal import Journal
from innoscope.toggles.journal_format import ServerId
from innoscope.toggles.model import Assignment, Generation, NotOnThisServer, Refused, Setting, Way
from innoscope.toggles.paths import boot_id
from safety.command import assert_one_clear_error, innoscope, run
from safety.debugging import Gdb, stand, until
from safety.privileges import nobody
from safety.toggling import ACCOUNT
from scale import few
from servers import NAMES, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target
    from innoscope.toggles.model import Toggle

OLD, NEW = "mysql-5.6.24", {"mariadb-10.11", "mariadb-11.4.5"}
WAYS = ("sql", "memory")
SWITCH = {"on": 1, "off": 0}
SPIN_ROUNDS = Setting("srv_n_spin_wait_rounds", "unsigned", 8, None, "innodb_sync_spin_loops")
FLUSHING = Setting("srv_adaptive_flushing", "unsigned", 1, (0, 1), "innodb_adaptive_flushing")
DIRTY = Setting("srv_max_buf_pool_modified_pct", "unsigned", 8, (0, 100), "innodb_max_dirty_pages_pct")
_HERE = Path(__file__).parent


@pytest.fixture(
    scope="module",
    params=few(
        NAMES, "mysql-5.5.9", "mysql-5.6.24", "mysql-9.7", "mariadb-10.11",
        reason="gdb reads its symbols for seconds, in each test",
    ),
)
def each(request: pytest.FixtureRequest) -> Iterator[Server]:
    """One server after the other."""
    with Server(request.param) as server:
        yield server


@pytest.fixture(scope="module")
def old() -> Iterator[Server]:
    with Server(OLD) as server:
        yield server


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """For each test one of its own."""
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run"))
    return Journal()


def variables(server: Server) -> dict[str, str]:
    """All that can be set in it, as it says itself."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES")
        return dict(cursor.fetchall())


def assert_refused(server: Server, code: int, said: str, *change: str) -> None:
    """By the command line: one clear error; the server is as it was, and the journal empty."""
    before = variables(server)
    result = innoscope("toggle", "set", *change, "--yes", "--pid", server.pid)
    assert_one_clear_error(result, code, said)
    assert variables(server) == before
    assert Journal().entries() == ()


@pytest.mark.parametrize(
    ("toggle", "value", "said"),
    [
        ("read_ahead", "off", "checkpoints"),
        ("doublewrite", "off", "write-fixed"),
        ("adaptive_hash_index", "off", "stale entries"),
        ("dirty_page_limit", "50", "double"),
        ("io_capacity", "2000", "division"),
    ],
)
def test_what_must_never_be_written_to_memory(each: Server, toggle: str, value: str, said: str) -> None:
    if toggle == "read_ahead" and each.name not in NEW:
        said = "read_ahead"  # 5.5.9 sets it by memory, and MySQL from 8.0 on has no need to
        if each.name == "mysql-5.5.9":
            assert innoscope("toggle", "plan", toggle, value, "--pid", each.pid).returncode == 0
            return
    code = NotOnThisServer.exit_code
    assert_refused(each, code, said, toggle, value, "--way", "memory")


@pytest.mark.parametrize(
    ("toggle", "value", "said"),
    [
        ("spin_rounds", "100001", "it takes 0 to 100000 rounds"),
        ("spin_rounds", "18446744073709551617", "it takes 0 to 100000 rounds"),
        ("spin_rounds", "0.5", "it takes"),
        ("spin_rounds", "many", "it takes"),
        ("adaptive_flushing", "2", "it takes on, off"),
        ("max_connections", "0", "it takes"),
        ("spn_rounds", "7", "no toggle"),
    ],
)
def test_values_out_of_range(old: Server, toggle: str, value: str, said: str) -> None:
    assert_refused(old, Refused.exit_code, said, toggle, value)


def test_nothing_is_called_inside_a_server(each: Server) -> None:
    assert_refused(each, NotOnThisServer.exit_code, "a call inside a live server", "release_memory")


def tampered(target: Target, toggle: Toggle, setting: Setting) -> Dependencies:
    """A catalog that takes a toggle's variable for something else."""
    values = SWITCH if toggle.domain.words else None
    way = Way("memory", (Assignment(setting, values),))
    generation = Generation(target.flavour, VersionRange.parse("0+"), (way,))
    return Dependencies(toggles=lambda: {toggle.name: replace(toggle, generations=(generation,))})


@pytest.mark.parametrize(
    ("toggle", "value", "setting", "said"),
    [
        ("spin_rounds", "7", replace(SPIN_ROUNDS, size=4), "bytes in this build, and 4 in the catalog"),
        ("spin_rounds", "7", replace(SPIN_ROUNDS, size=1), "bytes in this build, and 1 in the catalog"),
        ("spin_rounds", "7", replace(SPIN_ROUNDS, kind="float"), "float.* in the catalog"),
        ("spin_rounds", "7", replace(SPIN_ROUNDS, plausible=(1, 2)), "should be from 1 to 2"),
        (
            "adaptive_flushing",
            "off",
            replace(FLUSHING, size=8),
            "1 bytes in this build, and 8 in the catalog",
        ),
        ("dirty_page_limit", "50", DIRTY, "float64|double"),
    ],
    ids=["4 bytes", "1 byte", "a float", "implausible", "8 bytes into a flag", "an integer into a double"],
)
def test_a_tampered_catalog(each: Server, toggle: str, value: str, setting: Setting, said: str) -> None:
    """Its entries are not believed: the server's own debug information or table of variables has the word."""
    if setting is DIRTY and each.name in ("mysql-5.5.9", "mysql-5.6.24"):
        setting, said = replace(setting, kind="float"), "unsigned long|ulong|uint64"  # an integer there
    target, before = find_one(each.pid), variables(each)
    deps = tampered(target, catalog.load()[toggle], setting)
    with pytest.raises(Refused, match=said) as refused:
        engine.plan(target, toggle, value, account=ACCOUNT, deps=deps)

    assert refused.value.remedy
    assert variables(each) == before
    assert Journal().entries() == ()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("other", "said"), [({"build_id": "00" * 20}, "build-id"), ({"start_time": 1}, "another process now")]
)
def test_not_the_process_that_was_planned(
    old: Server, journal: Journal, way: str, other: dict[str, Any], said: str
) -> None:
    target, before = find_one(old.pid), variables(old)
    plan = engine.plan(target, "max_connections", "2600", account=ACCOUNT, ways=[way])
    wrong = replace(target, **other)
    for attempt in (
        lambda: engine.plan(wrong, "max_connections", "2600", account=ACCOUNT, ways=[way]),
        lambda: engine.apply(wrong, plan, who="test", account=ACCOUNT),
    ):
        with pytest.raises(Refused, match=said) as refused:
            attempt()
        assert refused.value.remedy

    assert variables(old) == before
    assert journal.entries() == ()


def test_a_pid_that_is_another_process_by_now(tmp_path: Path) -> None:
    """In a pid namespace, where the next pid can be chosen: neither changed nor undone."""
    own = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    result = subprocess.run(
        [*own, sys.executable, "-m", "safety.toggle_reused_main", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(_HERE.parent)},
    )

    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["pids"][0] == told["pids"][1]
    assert "is another process now" in told["apply"]
    assert "has ended" in told["undo"]
    assert told["entries"] == 1, "that of the process before"


def stopped(server: Server) -> Callable[[], object]:
    """Stop it; returns what lets it go on."""
    server.process.send_signal(signal.SIGSTOP)
    until(lambda: stand(server.pid))
    return lambda: server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_server(old: Server, journal: Journal, way: str) -> None:
    go_on = stopped(old)
    try:
        result = innoscope(
            "toggle", "set", "max_connections", "2600", "--way", way, "--yes", "--pid", old.pid
        )
    finally:
        go_on()

    assert_one_clear_error(result, Refused.exit_code, "stopped")
    assert f"innoscope unstick --pid {old.pid}" in result.stderr
    assert variables(old)["max_connections"] == "2500"
    assert journal.entries() == ()


@pytest.mark.parametrize("way", WAYS)
def test_a_traced_server(old: Server, way: str) -> None:
    with Gdb(old.pid) as gdb:
        gdb.until_prompt().type("continue")
        until(lambda: not stand(old.pid))

        assert_refused(old, Refused.exit_code, f"process {gdb.pid} (gdb) traces the server",
                       "max_connections", "2600", "--way", way)  # fmt: skip
        gdb.kill()


@pytest.mark.parametrize("way", WAYS)
def test_somebody_else_changes_it_right_now(old: Server, way: str) -> None:
    with lock.held(Journal().folder, ServerId.of(find_one(old.pid), boot_id())):
        assert_refused(old, Refused.exit_code, f"process {os.getpid()} is changing server {old.pid}",
                       "max_connections", "2600", "--way", way)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_an_unprivileged_user(old: Server, journal: Journal, way: str) -> None:
    before = variables(old)
    result = run(nobody("toggle", "set", "max_connections", "2600", "--way", way, "--yes", "--pid", old.pid))

    assert result.returncode in (Refused.exit_code, NoRights.exit_code), result.stderr
    assert_one_clear_error(result, result.returncode)
    assert variables(old) == before
    assert journal.entries() == ()
