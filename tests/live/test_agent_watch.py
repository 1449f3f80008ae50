"""[watch] of the agent: a stall becomes a file, which is told of and served like stacks are."""

from __future__ import annotations

import base64
import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.incident.files import load
from safety.agenting import Running
from safety.sensing import Sensing
from servers import Server
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 60
#: ann:secret, at bcrypt's lowest cost.
USER = '"$2b$04$8rxkvEEf1L4p9tz1nvUw6OunHm9Car9xkcNHBZO9SqJ.uu7AGXIUW"'
ANN = "Basic " + base64.b64encode(b"ann:secret").decode()
NAME = "under%20test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("incidents")
    for parent in (place, *list(place.parents)[:2]):
        parent.chmod(0o755)
    return place / "kept"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as one:
        yield one


@pytest.fixture(scope="module")
def agent(server: Server, folder: Path) -> Iterator[Running]:
    """It has captured one stall, which goes on."""
    watch = (
        "[watch]",
        'triggers = ["share.row_lock>0.3"]',
        "for_seconds = 0\nseconds = 2\nbefore_seconds = 20",
        f'directory = "{folder}"',
    )
    with ExitStack() as stack:
        sensing = stack.enter_context(Sensing(only=[server]))
        agent = stack.enter_context(Running(server, sensor=sensing.path, options=watch))
        agent.until(lambda scrape: scrape.value("collector_success", collector="waits") == 1)
        assert agent.scrape().value("incidents_total") == 0
        until(lambda: asked(agent, f"/api/findings?server={NAME}"), lambda told: told["looks"] >= 5)
        stack.enter_context(RowLock(server, 10))
        agent.until(lambda scrape: scrape.value("incidents_total") == 1, PATIENCE_S)
        yield agent


def asked(agent: Running, path: str) -> Any:
    status, body = agent.get(path)
    assert status == 200, body
    return json.loads(body)


def until(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not holds(told := ask()):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    return told


def test_the_file_is_told_of_and_given_out(agent: Running, folder: Path, tmp_path: Path) -> None:
    [incident] = asked(agent, "/api/incidents")["incidents"]
    assert incident["server"] == "under test"
    assert incident["finding"] == "row_lock_convoy"
    assert incident["trigger"].startswith("share.row_lock>0.3 (")
    assert asked(agent, f"/api/incidents?server={NAME}")["incidents"] == [incident]
    assert asked(agent, "/api/incidents?server=other")["incidents"] == []

    status, body = agent.get(f"/api/incidents?file={incident['file']}")
    assert (status, len(body)) == (200, incident["bytes"])
    (tmp_path / "got.innoscope").write_bytes(body)
    capture = load(tmp_path / "got.innoscope")
    assert capture.trigger == incident["trigger"]
    assert capture.evidence.threads(clients=True)["row_lock"] >= 10
    assert capture.verdict["findings"][0]["name"] == "row_lock_convoy"
    assert capture.variables["version"]
    assert capture.status is not None
    assert capture.before is not None
    assert capture.before.snapshots
    assert capture.before.threads(clients=True)["row_lock"] == 0
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["../agent.toml", "incidents.json", "/etc/passwd", "", "%00"])
def test_nothing_else_is_given_out(agent: Running, name: str) -> None:
    status, body = agent.get(f"/api/incidents?file={name}")
    assert status in (200, 404)
    assert status == 404 or json.loads(body)["incidents"]  # no name at all: the list


def test_findings_are_judged_when_somebody_asks(agent: Running) -> None:
    path = f"/api/findings?server={NAME}"
    told = until(lambda: asked(agent, path), lambda told: bool(told["findings"]))
    assert told["findings"][0]["name"] == "row_lock_convoy"
    assert told["findings"][0]["blockers"]
    status, body = agent.get(f"{path}&format=text")
    assert status == 200
    assert b"row_lock_convoy" in body
    assert agent.get("/api/findings?server=other")[0] == 400
    assert agent.get(f"{path}&format=xml")[0] == 400


def test_who_is_not_trusted_gets_none_of_it(agent: Running) -> None:
    """As through a proxy: who asks it may be anywhere."""
    [incident] = asked(agent, "/api/incidents")["incidents"]
    for path in ("/api/incidents", f"/api/incidents?file={incident['file']}", f"/api/findings?server={NAME}"):
        status, body = agent.get(path, X_Forwarded_For="192.0.2.1")
        assert (status, b"row_lock" in body) == (403, False)


def test_without_a_password_nobody_gets_a_file(
    agent: Running, server: Server, folder: Path, tmp_path: Path
) -> None:
    """Another agent, which finds the file there; it has no rules of its own."""
    [incident] = asked(agent, "/api/incidents")["incidents"]
    web = tmp_path / "web.yaml"
    web.write_text(f"basic_auth_users: {{ann: {USER}}}\n")
    for place in (tmp_path, *list(tmp_path.parents)[:2]):
        place.chmod(0o755)
    options = ("[watch]", f'directory = "{folder}"')
    with Running(
        server, "--web.config.file", web, "--web.listen-address", "0.0.0.0:0", options=options
    ) as other:
        path = f"/api/incidents?file={incident['file']}"
        for asking in (path, "/api/incidents", f"/api/findings?server={NAME}"):
            assert other.get(asking)[0] == 401
            assert other.get(asking, Authorization="Basic YW5uOndyb25n")[0] == 401
        status, body = other.get(path, Authorization=ANN)
        assert (status, len(body)) == (200, incident["bytes"])
        assert json.loads(other.get("/api/incidents", Authorization=ANN)[1])["incidents"] == [incident]
