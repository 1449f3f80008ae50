"""Test that a real agent pushes profiles to receivers that check the documented APIs and can misbehave."""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import pprofile
import receiver as faults
from certificates import self_signed
from receiver import Receiver
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.sensing import Sensing
from scale import count, long
from servers import Server
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from receiver import Received

WAITERS = 6
#: Number of pushes; one is sent every 10 s, the shortest interval allowed.
PUSHES = count(quick=1, full=2)
#: Timeout in seconds of a push to Parca, which does not respond. Only the long test waits for it.
HANGING_S = count(quick=30, full=2)
#: Timeout in seconds of a command. It is longer than the timeout of its push.
COMMAND_S = 90


class Scene:
    """A server, its sensor, and an agent for each kind of receiver; the receiver for Parca hangs at first."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self_signed(folder)
        (folder / "token").write_text("sesame\n")
        self.server = server = stack.enter_context(Server("mysql-5.6.24"))
        stack.enter_context(RowLock(server, WAITERS))
        self.sensing = stack.enter_context(Sensing("--no-probes", only=[server]))
        self.pyroscope = stack.enter_context(Receiver(certificate=folder))
        self.parca = stack.enter_context(Receiver("parca"))
        self.parca.always = faults.silent
        secured = f"bearer_token_file = '{folder}/token'\nca_file = '{folder}/cert.pem'\ntimeout_seconds = 60"
        hanging = f"timeout_seconds = {HANGING_S}"
        self.agents = [
            stack.enter_context(Running(server, sensor=self.sensing.path, options=[_push(there, more)]))
            for there, more in ((self.pyroscope, secured), (self.parca, hanging))
        ]


def _push(to: Receiver, more: str) -> str:
    return (
        f"[stacks]\npoll_seconds = 1\n[push]\nurl = '{to.url}'\nkind = '{to.kind}'\ninterval_seconds = 10\n"
        f"labels = {{cluster = 'tests'}}\n{more}\n"
    )


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, tmp_path_factory.mktemp("push"))


def test_pushed_profiles_equal_what_the_agent_serves(scene: Scene) -> None:
    there, agent = scene.pyroscope, scene.agents[0]
    there.until(lambda: len(there.received) >= PUSHES)
    got = list(there.received)

    assert there.complaints == []
    labels = {"__name__": "mysqld", "server": "under test", "flavour": "mysql", "version": "5.6.24"}
    assert all(one.labels.items() >= (labels | {"cluster": "tests"}).items() for one in got)
    assert all(one.headers["Authorization"] == "Bearer sesame" for one in got)
    _check_served(agent, got)
    scrape = agent.until(lambda found: (found.value("push_profiles_total") or 0) >= len(got))
    assert (scrape.value("push_bytes_total") or 0) >= sum(one.size for one in got)
    assert sum(scrape.named("push_failures_total").values()) == 0
    assert scrape.value("push_last_success_timestamp_seconds")
    assert "sesame" not in agent.log


def _check_served(agent: Running, got: list[Received]) -> None:
    """Check that each snapshot in the period that these pushes cover was pushed exactly once.

    The number of threads in each wait class must equal the number in the profile that the agent serves.
    """
    begin = min(one.profile.time_nanos for one in got) / 1e9
    end = max(one.profile.time_nanos + one.profile.duration_nanos for one in got) / 1e9
    status, body = agent.get(f"/api/stacks?format=pprof&from={begin - 0.001:.3f}&to={end + 0.001:.3f}")
    assert status == 200
    served = pprofile.parse(body)
    pushed = sum((one.profile.by_label("wait") for one in got), start=served.by_label("none"))

    assert sum(one.profile.total for one in got) == served.total > 0
    assert pushed == served.by_label("wait")
    assert pushed["row_lock"] >= WAITERS


@long("tests/unit/test_push_queue.py tests it with a fake clock")
def test_hanging_receiver_gets_all_profiles_later(scene: Scene) -> None:
    there, agent = scene.parca, scene.agents[1]
    there.until(lambda: there.requests >= 2)
    scrape = agent.until(lambda found: (found.value("push_failures_total", reason="timeout") or 0) >= 2)
    assert (scrape.value("push_queue_bytes") or 0) > 0
    assert there.received == []
    there.always = faults.reset
    agent.until(lambda found: (found.value("push_failures_total", reason="connection") or 0) >= 1)
    there.always = None
    there.until(lambda: len(there.received) >= 3)
    got = list(there.received)

    assert there.complaints == []
    assert got[0].labels["cluster"] == "tests"
    starts = [one.profile.time_nanos for one in got]
    assert starts == sorted(starts)
    _check_served(agent, got)
    last = agent.until(lambda found: found.value("push_queue_bytes") == 0)
    assert sum(last.named("push_dropped_total").values()) == 0


def _ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)


@pytest.mark.parametrize(("options", "sample_type"), [((), "samples"), (("--off-cpu",), "off-cpu")])
def test_profile_is_printed_and_pushed(options: tuple[str, ...], sample_type: str, scene: Scene) -> None:
    """Check that the receiver gets what the command prints, with the labels of the agent's profiles."""
    there, agent = scene.pyroscope, scene.agents[0]
    command = [
        INNOSCOPE, "profile", "--pid", str(scene.server.pid), "--seconds", "1", *options, "--json",
        "--push", str(agent.home / "agent.toml"),
    ]  # fmt: skip
    done = _ended(command)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("under test: pushed ")
    (got,) = [one for one in there.received if one.profile.sample_type[0] == sample_type]
    printed = json.loads(done.stdout)

    assert there.complaints == []
    assert got.labels.items() >= {"server": "under test", "version": "5.6.24", "cluster": "tests"}.items()
    assert got.profile.total == printed["total"]
    assert got.profile.by_label("wait") == printed["waits"]
    with there.pausing(faults.status(401, b"who are you?")):
        done = _ended(command)
    assert done.returncode == 17
    assert json.loads(done.stdout)["target"]["pid"] == scene.server.pid
    assert "answered 401: who are you?" in done.stderr


def test_profile_is_not_taken_if_it_cannot_be_pushed(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text("[push]\nkind = 'pyroscope'\n")
    command = [INNOSCOPE, "profile", "--pid", str(scene.server.pid), "--push", str(tmp_path / "agent.toml")]
    done = _ended(command)
    assert (done.returncode, done.stdout) == (9, "")
    assert "push.url is not set" in done.stderr


@pytest.mark.parametrize("number", [0, 1])
def test_check_and_push_once(number: int, scene: Scene) -> None:
    agent, there = scene.agents[number], (scene.pyroscope, scene.parca)[number]
    there.always = None  # from now on, the receiver for Parca responds
    command = [INNOSCOPE, "agent", "--config.file", str(agent.home / "agent.toml")]
    done = _ended([*command, "--check"])
    assert (done.returncode, done.stdout) == (0, "the configuration is valid\n")
    once = [*command, "--sensor-socket", str(scene.sensing.path), "--push-once"]
    done = _ended(once)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("under test: ")
    assert any(one.labels.get("try") == "by_hand" for one in there.received)
    with there.pausing(faults.status(401, b"who are you?")):
        done = _ended(once)
    assert done.returncode == 17
    assert "answered 401: who are you?" in done.stderr
    assert "sesame" not in done.stderr + done.stdout
