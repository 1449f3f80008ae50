"""Test that `innoscope watch` and the agent's [watch] save a stall and the time before it in a file.

The test of the time before the stall runs last, because that time must pass first.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.diagnose.incident.files import load
from innoscope.diagnose.verdict import judge
from innoscope.diagnose.watch.triggers import RECENT_S
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.leftovers import breakpoints
from safety.sensing import Sensing
from scale import long
from servers import Server
from waiting import until
from webhook import Webhook
from workloads import Cpu, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 120
BEFORE_S = 20
#: Seconds until `watch` has taken its first snapshot, on a busy machine.
FIRST_S = 10
NAME = "under%20test"
#: The bcrypt hash of ann's password, "secret", at the lowest cost.
USER = '"$2b$04$8rxkvEEf1L4p9tz1nvUw6OunHm9Car9xkcNHBZO9SqJ.uu7AGXIUW"'
ANN = "Basic " + base64.b64encode(b"ann:secret").decode()


@contextlib.contextmanager
def watching(server: Server, folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    command = [
        INNOSCOPE, "watch", "--pid", str(server.pid), "-u", "root", "--dir", str(folder), "--json", *more
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def next_event(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next event. Skip reports of missing values: on a busy host, snapshots may be missing."""
    assert process.stdout is not None
    found: dict[str, Any] = {"event": "blind"}
    while found["event"] == "blind":
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        found = json.loads(line)
    return found


@dataclass(frozen=True)
class Calm:
    """A busy, healthy server, watched since ``begun``."""

    server: Server
    watch: subprocess.Popen[str]
    folder: Path
    begun: float


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calm]:
    folder = tmp_path_factory.mktemp("stalls")
    more = ("--trigger", "share.row_lock>0.3", "--before", "60", "--for", "1", "--seconds", "3", "--once")
    with Server("mysql-5.6.24") as server, Cpu(server, 2), watching(server, folder, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        yield Calm(server, watch, folder, time.time())


@pytest.fixture(scope="module")
def server(calm: Calm) -> Iterator[Server]:
    """Yield another server, for the tests that do not need a calm one."""
    del calm
    with Server("mysql-5.6.24") as one:
        yield one


@long("it interrupts a capture, which takes seconds")
def test_interrupted_capture_leaves_nothing(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "threads_busy>=1", "--for", "0", "--seconds", "60")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        with RowLock(server, 2):
            assert next_event(watch)["event"] == "triggered"
            os.kill(watch.pid, signal.SIGINT)
            assert watch.wait(PATIENCE_S) == 130
    assert list(tmp_path.iterdir()) == []
    assert breakpoints(server.pid) == set()


@long("tests/safety/test_agent_faults.py restarts a server under the agent")
def test_restarted_server_is_watched_again(server: Server, tmp_path: Path) -> None:
    more = ("--trigger", "threads.row_lock>=3", "--for", "0", "--seconds", "1", "--no-probes")
    with watching(server, tmp_path, *more) as watch:
        assert next_event(watch)["event"] == "watching"
        before = server.pid
        server.kill()
        assert next_event(watch)["event"] == "ended"
        server.start()
        again = next_event(watch)
        assert (again["event"], again["pid"]) == ("watching", server.pid)
        assert server.pid != before
        with RowLock(server, 5):
            assert [next_event(watch)["event"] for _ in range(2)] == ["triggered", "captured"]


def test_unknown_trigger_suggests_the_right_name(tmp_path: Path) -> None:
    command = [INNOSCOPE, "watch", "--trigger", "threads_runing>5", "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "did you mean threads_running?" in done.stderr


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Yield a path that the agent's user can reach. It cannot reach pytest's directories."""
    with tempfile.TemporaryDirectory(prefix="innoscope-watch-") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place / "kept"


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    """Yield a webhook that is unavailable at first."""
    with Webhook([503]) as one:
        yield one


@pytest.fixture(scope="module")
def agent(server: Server, folder: Path, webhook: Webhook) -> Iterator[Running]:
    """Yield an agent that has captured a stall. The stall continues."""
    watch = (
        f'[notify]\nurl = "{webhook.url}"\npage_url = "http://db1:9977"',
        "[watch]",
        'triggers = ["share.row_lock>0.3"]',
        "for_seconds = 0\nseconds = 2\nbefore_seconds = 20",
        f'directory = "{folder}"',
    )
    with contextlib.ExitStack() as stack:
        sensing = stack.enter_context(Sensing("--no-probes", only=[server]))
        agent = stack.enter_context(Running(server, sensor=sensing.path, options=watch))
        agent.until(lambda scrape: scrape.value("collector_success", collector="waits") == 1, PATIENCE_S)
        assert agent.scrape().value("incidents_total") == 0
        # a stall begins RECENT_S before its trigger first holds, so there must be calm evidence before that
        calm_until = time.monotonic() + 2 * RECENT_S
        until(lambda: has_calm_evidence(agent) and time.monotonic() > calm_until, within_s=PATIENCE_S)
        stack.enter_context(RowLock(server, 10))
        agent.until(lambda scrape: scrape.value("incidents_total") == 1, PATIENCE_S)
        yield agent


def has_calm_evidence(agent: Running) -> bool:
    """Return whether the agent has enough snapshots. Each scrape also adds a reading of the metrics."""
    agent.scrape()
    return bool(fetched(agent, f"/api/findings?server={NAME}")["looks"] >= 5)


def fetched(agent: Running, path: str) -> Any:
    status, body = agent.get(path)
    assert status == 200, body
    return json.loads(body)


def test_captured_stall_is_reported_with_its_blocker(agent: Running, webhook: Webhook) -> None:
    until(lambda: webhook.received, within_s=PATIENCE_S)
    [document] = webhook.received
    [alert] = document["alerts"]
    assert alert["labels"]["server"] == "under test"
    assert alert["labels"]["finding"] == "row_lock_convoy"
    assert alert["annotations"]["description"].startswith("blocker: ")
    status, _ = agent.get(alert["annotations"]["incident"].removeprefix("http://db1:9977"))
    assert status == 200
    agent.until(lambda scrape: scrape.value("notifications_total", outcome="sent") == 1, PATIENCE_S)
    assert agent.scrape().value("notifications_total", outcome="failed") == 1


def test_captured_file_is_listed_and_served(agent: Running, folder: Path, tmp_path: Path) -> None:
    [incident] = fetched(agent, "/api/incidents")["incidents"]
    assert incident["server"] == "under test"
    assert incident["finding"] == "row_lock_convoy"
    assert incident["trigger"].startswith("share.row_lock>0.3 (")
    assert fetched(agent, f"/api/incidents?server={NAME}")["incidents"] == [incident]
    assert fetched(agent, "/api/incidents?server=other")["incidents"] == []

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
    assert capture.before.readings
    assert capture.before.threads(clients=True)["row_lock"] == 0
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_captured_file_is_opened_over_http(agent: Running, tmp_path: Path) -> None:
    options = ["-a", f"127.0.0.1:{agent.port}", "--dir", str(tmp_path), "--json"]
    command = [INNOSCOPE, "incidents", "open", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 18, done.stderr
    assert json.loads(done.stdout)["findings"][0]["name"] == "row_lock_convoy"


@pytest.mark.parametrize("name", ["../agent.toml", "incidents.json", "/etc/passwd", "", "%00"])
def test_no_other_file_is_served(agent: Running, name: str) -> None:
    status, body = agent.get(f"/api/incidents?file={name}")
    assert status in (200, 404)
    assert status == 404 or json.loads(body)["incidents"]  # an empty name requests the list of incidents


def test_findings_are_served_as_json_and_text(agent: Running) -> None:
    path = f"/api/findings?server={NAME}"
    findings = until(lambda: fetched(agent, path)["findings"], within_s=PATIENCE_S)
    assert findings[0]["name"] == "row_lock_convoy"
    assert findings[0]["blockers"]
    status, body = agent.get(f"{path}&format=text")
    assert status == 200
    assert b"row_lock_convoy" in body
    assert agent.get("/api/findings?server=other")[0] == 400
    assert agent.get(f"{path}&format=xml")[0] == 400


def test_findings_are_exported_as_metrics(agent: Running) -> None:
    agent.until(
        lambda scrape: scrape.value("finding_score", finding="row_lock_convoy") is not None, PATIENCE_S
    )
    assert agent.scrape().value("findings_up") == 1


def test_untrusted_requests_are_refused(agent: Running) -> None:
    """Send requests with a proxy's header, because the client behind a proxy may be on any host."""
    [incident] = fetched(agent, "/api/incidents")["incidents"]
    for path in ("/api/incidents", f"/api/incidents?file={incident['file']}", f"/api/findings?server={NAME}"):
        status, body = agent.get(path, X_Forwarded_For="192.0.2.1")
        assert (status, b"row_lock" in body) == (403, False)


def test_files_need_a_password_on_a_public_address(agent: Running, server: Server, folder: Path) -> None:
    """Start another agent, without triggers, that serves the files of the same directory."""
    [incident] = fetched(agent, "/api/incidents")["incidents"]
    web = folder.with_name("web.yaml")
    web.write_text(f"basic_auth_users: {{ann: {USER}}}\n")
    options = ("[watch]", f'directory = "{folder}"')
    with Running(
        server, "--web.config.file", web, "--web.listen-address", "0.0.0.0:0", options=options
    ) as other:
        path = f"/api/incidents?file={incident['file']}"
        for resource in (path, "/api/incidents", f"/api/findings?server={NAME}"):
            assert other.get(resource)[0] == 401
            assert other.get(resource, Authorization="Basic YW5uOndyb25n")[0] == 401
        status, body = other.get(path, Authorization=ANN)
        assert (status, len(body)) == (200, incident["bytes"])
        assert json.loads(other.get("/api/incidents", Authorization=ANN)[1])["incidents"] == [incident]


def test_file_contains_the_stall_and_the_time_before_it(calm: Calm) -> None:
    time.sleep(max(0.0, calm.begun + FIRST_S + BEFORE_S - time.time()))  # the file must cover this period
    stalls = time.time()
    with RowLock(calm.server, 20):
        events = [next_event(calm.watch), next_event(calm.watch)]
    assert calm.watch.wait(PATIENCE_S) == 0
    assert [event["event"] for event in events] == ["triggered", "captured"]
    assert events[1]["findings"][0]["name"] == "row_lock_convoy"

    [path] = calm.folder.iterdir()
    assert str(path) == events[1]["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    capture = load(path)
    assert capture.trigger is not None
    assert capture.trigger.startswith("share.row_lock>0.3 (")
    assert capture.status is not None
    assert capture.variables["version"]
    before = capture.before
    assert before is not None
    assert stalls - before.snapshots[0].at >= BEFORE_S
    assert len(before.snapshots) >= BEFORE_S / 2
    assert before.threads(clients=True)["row_lock"] == 0
    assert before.ended < capture.evidence.begun
    assert len(before.readings) >= BEFORE_S / 2
    assert capture.evidence.threads(clients=True)["row_lock"] >= 20
    found = judge(capture.evidence).findings
    assert found[0].name == "row_lock_convoy"
    assert found[0].blockers
