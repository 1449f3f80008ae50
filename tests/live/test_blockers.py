"""Test that `diagnose`, with the account of packaging/account.sql, names the blocker or the missing setting.

The expected results are those in the table in docs/servers.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from install.test_account import PASSWORD, statements
from live.blocker_scenes import CONFIGURATIONS, SCENES, WAITERS, Configuration, table
from safety.command import innoscope
from scale import few
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUND = 18
SECONDS = 2
PAGE = Path(__file__).parents[2] / "docs" / "servers.md"
QUICK = [one for one in CONFIGURATIONS if one.server in ("mysql-5.7.22", "mysql-8.0.31")]
ALL = few(CONFIGURATIONS, *QUICK, reason="the blockers of the other servers are read in the same way")


@pytest.fixture(scope="module", params=ALL, ids=lambda one: one.title.replace("`", ""))
def configuration(request: pytest.FixtureRequest) -> Configuration:
    chosen: Configuration = request.param
    return chosen


@pytest.fixture(scope="module")
def server(configuration: Configuration) -> Iterator[Server]:
    """Yield a server on which the account of packaging/account.sql exists."""
    with Server(configuration.server, options=configuration.options) as server:
        server.sql(*statements(PASSWORD))
        yield server


@pytest.fixture
def option_file(tmp_path: Path) -> Path:
    path = tmp_path / "my.cnf"
    path.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    path.chmod(0o600)
    return path


def _findings(server: Server, option_file: Path) -> dict[str, Any]:
    options = ("--seconds", SECONDS, "--defaults-file", option_file, "--json")
    done = innoscope("diagnose", "--pid", server.pid, *options)
    assert done.returncode == FOUND, done.stderr
    return {one["name"]: one for one in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize("kind", SCENES)
def test_holder_or_setting_is_named(
    configuration: Configuration, server: Server, option_file: Path, kind: str
) -> None:
    scene = SCENES[kind]
    if not scene.exists(server.name):
        with pytest.raises(Exception, match="syntax"), scene.hold(server):
            pass
        return
    with scene.hold(server) as holder:
        found = _findings(server, option_file)
    assert scene.finding in found, found
    blockers = found[scene.finding]["blockers"]
    if scene.named(configuration):
        assert blockers[0]["connection"] == holder, blockers
        assert blockers[0]["waiting"] >= WAITERS, blockers
    else:
        assert all(configuration.setting in one["words"] for one in blockers), blockers


def test_documentation_has_the_table() -> None:
    assert "\n".join(table()) in PAGE.read_text()
