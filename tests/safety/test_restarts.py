"""Test that metrics remain correct across a crash recovery, and across an upgrade of the running server."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from safety.agenting import Running, Scrape, falls
from safety.contained import installed_in
from safety.leftovers import probed
from safety.recovering import ROOMY, TIGHT, make_redo
from safety.sensing import Sensing
from scale import long
from servers import Server
from workloads import Fsync

if TYPE_CHECKING:
    from pathlib import Path

RECOVERS_S = 180
#: Maximum seconds from the start of the new server to its first attached probe.
FOLLOWED_S = 5


@long("tests/live/test_memory.py and tests/safety/test_profile_ends.py have a crash recovery")
@pytest.mark.timeout(600)
def test_counters_never_decrease_over_a_crash_recovery() -> None:
    with (
        Server("mysql-5.6.24", options=ROOMY) as server,
        Sensing(only=[server]) as sensing,
        Running(server, sensor=sensing.path) as agent,
    ):
        make_redo(server)
        before = agent.until(_complete)
        server.kill()
        down = agent.until(lambda scrape: scrape.value("sql_up") == 0)
        assert (down.value("mysqld_up"), down.why("sql") in {"gone", "refused"}) == (0, True)
        server.options = TIGHT
        server.start(wait=False)
        recovering = agent.until(
            lambda scrape: bool(scrape.value("recovery_scanned_bytes")) or scrape.value("sql_up") == 1,
            RECOVERS_S,
        )
        assert (recovering.value("mysqld_up"), recovering.value("sql_up")) == (1, 0)
        assert recovering.why("sql") == "refused"
        assert recovering.value("connections_limit")
        assert falls(before, recovering) == {}
        after = agent.until(_complete, RECOVERS_S)
        assert falls(before, after) == {}
        assert after.value("recovery_scanned_bytes") == 0
        lsn = before.value("redo_written_bytes_total")
        assert after.value("redo_written_bytes_total") == pytest.approx(lsn, rel=0.1)


def _complete(scrape: Scrape) -> bool:
    complete = scrape.value("sql_up") == 1 and scrape.value("connections_limit") is not None
    return complete and not any(scrape.why(collector) for collector in ("memory", "waits", "probes"))


@long("tests/safety/test_namespaces.py has an upgrade")
def test_probes_follow_a_server_that_is_upgraded_in_place(folder: Path) -> None:
    server = Server("mysql-5.6.24")
    server.installation = installed_in("mysql-5.6.24", folder / "server")
    with server, Sensing(only=[server]) as sensing, Running(server, sensor=sensing.path) as agent:
        first = agent.until(_complete)
        _upgrade(server.installation.mysqld, folder)
        with Fsync(server, 1):
            counting = agent.until(lambda scrape: _redo_writes(scrape) > _redo_writes(first) + 50)
        assert falls(first, counting) == {}
        assert probed(server.pid), "no probes on the running file"

        server.stop()
        down = agent.until(lambda scrape: scrape.value("mysqld_up") == 0)
        assert falls(counting, down) == {}
        began = time.monotonic()
        server.start(wait=False)
        while not probed(server.pid):
            assert time.monotonic() < began + FOLLOWED_S, f"no probe yet:\n{sensing.log}"
            time.sleep(0.05)
        server.wait_ready()
        with Fsync(server, 1):
            again = agent.until(lambda scrape: _redo_writes(scrape) > _redo_writes(counting) + 50)
        assert falls(down, again) == falls(counting, again) == {}


def _redo_writes(scrape: Scrape) -> float:
    return scrape.value("probe_hits_total", probe="redo_write") or 0


def _upgrade(binary: Path, folder: Path) -> None:
    """Replace the executable with one of a different layout, in the same way as a package manager."""
    new = folder / "new"
    note = folder / "note"
    note.write_text("a later build")
    subprocess.run(["objcopy", "--add-section", f".later={note}", binary, new], check=True)
    shutil.copymode(binary, new)
    new.rename(binary)
