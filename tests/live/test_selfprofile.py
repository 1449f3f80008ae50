"""Profile a real agent and sensor with ``innoscope self-profile``; test the agent's CPU budget warning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from bench.proc import cpu_seconds
from safety.agenting import Running
from safety.command import assert_one_clear_error, innoscope
from safety.sensing import Sensing
from scale import long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers import Server

HOGGING = (sys.executable, str(Path(__file__).parents[1] / "safety" / "hogging_main.py"))
#: The shortest window allowed for the CPU budget. The hog exceeds the budget even on a busy machine.
WINDOW_S = 10
QUICKLY = f"cpu_budget = 0.01\nwindow_seconds = {WINDOW_S}"
WARNING = "CPU budget exceeded"
PATIENCE_S = 60


@pytest.fixture(scope="module")
def scene(server: Callable[[str], Server]) -> Iterator[tuple[Running, Sensing]]:
    """Yield an agent that continuously serves pages, and its sensor."""
    ended, one = threading.Event(), server("mysql-5.6.24")
    with Sensing("--no-probes", only=[one]) as sensing, Running(one, sensor=sensing.path) as agent:

        def request() -> None:
            while not ended.is_set():
                agent.get("/")

        requests = threading.Thread(target=request)
        requests.start()
        yield agent, sensing
        ended.set()
        requests.join()


def stopped(pid: int) -> bool:
    """Return whether the process is currently stopped or traced."""
    status = Path(f"/proc/{pid}/status").read_text()
    return "\nState:\tt" in status or "\nState:\tT" in status or "\nTracerPid:\t0\n" not in status


@pytest.mark.parametrize("form", ["flamegraph", "speedscope", "raw"])
def test_agent_is_profiled_in_three_formats(
    form: str, scene: tuple[Running, Sensing], tmp_path: Path
) -> None:
    agent, _ = scene
    file = tmp_path / "out"
    done = innoscope("self-profile", "--pid", agent.pid, "--seconds", 1, "--format", form, "-o", file)
    text = file.read_text()

    assert done.returncode == 0, done.stderr
    assert "innoscope/daemon/http/server.py" in text
    if form == "flamegraph":
        assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314, written by py-spy
    elif form == "speedscope":
        assert json.loads(text)["profiles"]
    else:
        assert all(line.rpartition(" ")[2].isdecimal() for line in text.splitlines())


def test_agent_is_not_paused_while_it_is_profiled(scene: tuple[Running, Sensing]) -> None:
    agent, _ = scene
    before = cpu_seconds(agent.pid)
    done: list[subprocess.CompletedProcess[str]] = []
    profiling = threading.Thread(
        target=lambda: done.append(innoscope("self-profile", "--pid", agent.pid, "--seconds", 2))
    )
    profiling.start()
    states = []
    while profiling.is_alive():
        states.append(stopped(agent.pid))
        time.sleep(0.002)
    profiling.join()
    used = cpu_seconds(agent.pid) - before
    first, blank, heading, *rows = done[0].stdout.splitlines()

    assert first.startswith(f"agent, pid {agent.pid}: ")
    assert (blank, heading.split()) == ("", ["own", "total", "function"])
    assert rows
    assert len(states) > 100
    assert not any(states)
    assert used > 0


def test_sensor_is_profiled_with_its_idle_threads(scene: tuple[Running, Sensing]) -> None:
    _, sensing = scene
    done = innoscope("self-profile", "--pid", sensing.pid, "--seconds", 1, "--idle", "--format", "raw")

    assert done.returncode == 0, done.stderr
    assert "innoscope/daemon/sensor/main.py" in done.stdout


def test_native_frames_are_included_with_the_option(scene: tuple[Running, Sensing]) -> None:
    agent, _ = scene
    done = innoscope(
        "self-profile", "--pid", agent.pid, "--seconds", 1, "--native", "--format", "raw", "--idle"
    )

    assert done.returncode == 0, done.stderr
    assert "libc" in done.stdout
    assert not stopped(agent.pid)


def test_database_server_is_refused(server: Callable[[str], Server]) -> None:
    one = server("mysql-5.6.24")
    done = innoscope("self-profile", "--pid", one.pid, "--seconds", 1)

    assert_one_clear_error(done, 5, str(one.pid), "it is not an Innoscope process")


def test_missing_and_foreign_processes_are_refused() -> None:
    assert_one_clear_error(innoscope("self-profile", "--pid", 2**22), 4, "does not exist")
    other = innoscope("self-profile", "--pid", os.getpid())
    assert_one_clear_error(other, 5, "it is not an Innoscope process")


def test_killed_profiler_leaves_the_agent_running(scene: tuple[Running, Sensing]) -> None:
    agent, _ = scene
    py_spy = str(Path(sys.executable).with_name("py-spy"))
    options = ["--nonblocking", "--pid", str(agent.pid), "--duration", "30", "-o", os.devnull]
    command = [py_spy, "record", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as profiler:
        assert profiler.stdout is not None
        assert "Sampling" in profiler.stdout.readline()
        profiler.send_signal(signal.SIGKILL)
    assert not stopped(agent.pid)
    assert agent.scrape().value("build_info", version=version(agent)) == 1


def version(agent: Running) -> str:
    return next(dict(labels)["version"] for labels in agent.scrape().named("build_info"))


@long("it waits for windows of 10 s; tests/unit/test_cpu_budget.py has a fake clock")
def test_agent_over_its_budget_warns_once_and_names_the_command(server: Callable[[str], Server]) -> None:
    often = ("[stacks]", "poll_seconds = 1")
    with Running(server("mysql-5.6.24"), own=QUICKLY, program=HOGGING, options=often) as agent:
        deadline = time.monotonic() + PATIENCE_S
        while WARNING not in agent.log:
            assert time.monotonic() < deadline, agent.log
            time.sleep(0.2)
        time.sleep(2.5 * WINDOW_S)  # long enough for one more window over the budget
        log = agent.log

    assert log.count(WARNING) == 1
    warning = next(line for line in log.splitlines() if WARNING in line)
    assert "sudo innoscope self-profile" in warning
    assert "budget=1.0%" in warning
