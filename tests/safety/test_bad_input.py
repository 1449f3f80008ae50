"""Test that commands answer bad input with one clear error, a remedy and a distinct exit code."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import snapshot_methods
from innoscope.common.errors import BadFile, CannotWrite, NoRights, NoSuchProcess, NoTarget, NotAServer
from safety.command import DEADLINE_S, INNOSCOPE, assert_one_clear_error, innoscope, run
from safety.pretender import Pretender
from safety.privileges import nobody, seeing, without
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENDS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start a stripped server. The names of its InnoDB functions are only in a debug file."""
    with Server("mariadb-10.11") as server, Idle(server, 20):
        yield server


@pytest.fixture
def pretender(tmp_path: Path) -> Iterator[Pretender]:
    with Pretender(tmp_path) as pretender:
        yield pretender


# Choosing the process


def test_a_process_that_is_not_a_server_is_refused() -> None:
    result = innoscope("stacks", "--pid", os.getpid())

    assert_one_clear_error(result, NotAServer.exit_code, str(os.getpid()), "not a mysqld or mariadbd")


def test_a_kernel_thread_is_refused() -> None:
    assert_one_clear_error(innoscope("stacks", "--pid", 2), NotAServer.exit_code, "not a mysqld")


def test_a_thread_id_is_refused_with_the_pid_of_its_server(server: Server) -> None:
    thread = max(int(entry.name) for entry in Path(f"/proc/{server.pid}/task").iterdir())

    result = innoscope("stacks", "--pid", thread)

    assert_one_clear_error(result, NotAServer.exit_code, f"thread of process {server.pid}")
    assert f"--pid {server.pid}" in result.stderr


def test_a_missing_process_is_reported() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert_one_clear_error(innoscope("stacks", "--pid", gone.pid), NoSuchProcess.exit_code, str(gone.pid))


def test_an_unused_socket_or_port_is_reported_with_the_servers_that_run(server: Server) -> None:
    for option in (("--socket", "/nonexistent/mysqld.sock"), ("--port", 1)):
        result = innoscope("stacks", *option)

        assert_one_clear_error(result, NoTarget.exit_code, str(option[1]))
        assert f"--pid {server.pid}" in result.stderr, "the remedy does not name the running servers"


def test_several_servers_need_a_choice(server: Server, pretender: Pretender) -> None:
    result = innoscope("stacks")

    assert_one_clear_error(result, NoTarget.exit_code, "servers are running")
    for pid in (server.pid, pretender.pid):
        assert f"--pid {pid}" in result.stderr


def test_snapshots_before_the_servers_end_are_printed() -> None:
    """Check that the completed snapshots are printed before the error."""
    with Server("mariadb-10.11") as server:
        process = subprocess.Popen(
            [INNOSCOPE, "stacks", "--pid", str(server.pid), "--count", "100", "--interval", "0.1", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        server.kill()
        rest, errors = process.communicate(timeout=DEADLINE_S)

    assert json.loads(first)["tally"]["threads"] > 5
    snapshots = [json.loads(line) for line in rest.splitlines()]
    assert len(snapshots) < 99
    assert all(snapshot["threads"] for snapshot in snapshots)
    result = subprocess.CompletedProcess(process.args, process.returncode, rest, errors)
    assert_one_clear_error(result, NoSuchProcess.exit_code, "has exited")


@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_a_process_that_ends_during_a_snapshot_is_reported(tmp_path: Path, method: str) -> None:
    """Take snapshots without a pause, so that each process exits during a snapshot.

    Half of the processes become zombies.
    """
    draw = random.Random(1)  # noqa: S311
    loop = subprocess.Popen(
        [sys.executable, "-m", "safety.snapshot_loop_main", method],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert loop.stdin is not None
    assert loop.stdout is not None
    errors = []
    for number in range(ENDS):
        with Pretender(tmp_path) as pretender:
            print(pretender.pid, file=loop.stdin, flush=True)
            assert loop.stdout.readline() == "started\n"
            time.sleep(draw.uniform(0, 0.01))
            if number % 2:
                pretender.kill()
            else:
                os.kill(pretender.pid, signal.SIGKILL)
            errors.append(loop.stdout.readline().replace(str(pretender.pid), "PID").strip())
    loop.communicate(timeout=DEADLINE_S)
    assert loop.returncode == 0
    assert Counter(errors) == {"NoSuchProcess: process PID does not exist or has exited": ENDS}


# Privileges


def test_an_unprivileged_user_gets_no_stacks(server: Server) -> None:
    for method in snapshot_methods.ALL:
        result = run(nobody("stacks", "--pid", server.pid, "--method", method))

        assert_one_clear_error(result, NoRights.exit_code, str(server.pid))
        assert "sudo innoscope" in result.stderr


def test_an_unprivileged_user_can_list_the_servers(server: Server) -> None:
    result = run(nobody("targets"))

    assert result.returncode == 0, result.stderr
    [line] = [line for line in result.stdout.splitlines() if line.split()[0] == str(server.pid)]
    assert "run as root" in line


def test_doctor_reports_missing_privileges(server: Server) -> None:
    result = run(nobody("doctor", "--pid", server.pid))

    assert result.returncode == 11, result.stderr
    assert result.stderr == ""
    assert "CAP_BPF" in result.stdout


def test_without_bpf_and_ptrace_there_are_no_stacks(server: Server) -> None:
    less = without("bpf", "perfmon", "sys_admin", "sys_ptrace", "checkpoint_restore", "dac_override")

    assert_one_clear_error(innoscope("stacks", "--pid", server.pid, under=less), NoRights.exit_code)


# Damaged files


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"junk" * 4096, id="junk"),
        pytest.param(lambda data: data[:5000], id="cut off"),
        pytest.param(lambda data: data[:64] + bytes(len(data) - 64), id="zeroed"),
    ],
)
def test_a_damaged_debug_file_hides_no_other_names(
    server: Server, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """Check that the stacks contain the executable's names, and that a note reports the damaged file."""
    targets = json.loads(innoscope("targets", "--json").stdout)
    [build_id] = [target["build_id"] for target in targets if target["pid"] == server.pid]
    place = tmp_path / ".build-id" / build_id[:2]
    place.mkdir(parents=True)
    (place / f"{build_id[2:]}.debug").write_bytes(damage(server.installation.mysqld.read_bytes()))

    result = innoscope("stacks", "--all", "--pid", server.pid, under=seeing(tmp_path, "/usr/lib/debug"))

    assert (result.returncode, result.stderr) == (0, "")
    assert int(result.stdout.split()[0]) > 20
    assert "handle_one_connection" in result.stdout
    [note] = [line for line in result.stdout.splitlines() if "frames are shown without names" in line]
    assert f"{build_id[2:]}.debug: " in note, f"no reason for ignoring the debug file: {note}"


@pytest.mark.parametrize("keep", [0, 100, 4096, 20_000])
def test_a_truncated_library_hides_no_other_names(tmp_path: Path, keep: int) -> None:
    """Truncate a mapped library, so that it is not a valid ELF file. The other modules keep their names."""
    library = tmp_path / "libm.so.6"
    shutil.copy2(_mapped("libm"), library)
    with Pretender(tmp_path, preload=[library]) as pretender:
        os.truncate(library, keep)
        result = innoscope("stacks", "--pid", pretender.pid)

    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("1 thread")
    assert "nanosleep" in result.stdout


def _mapped(name: str) -> Path:
    """Return the file of a library that this process has mapped as code."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(rf" r-xp .*?(/\S*/{name}[.-]\S*)$", maps, re.MULTILINE)
    assert found
    return Path(found[1])


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recording")
    with Pretender(folder) as pretender:
        file = folder / "snapshots.gz"
        options = ("--no-queries", "--interval", 0.1, "--duration", 3)
        result = innoscope("top", "--pid", pretender.pid, "--record", file, *options)
    assert result.returncode == 0, result.stderr
    assert innoscope("replay", file).returncode == 0
    return file.read_bytes()


def test_a_damaged_recording_is_refused(recording: bytes, tmp_path: Path) -> None:
    middle, lines = len(recording) // 2, gzip.decompress(recording)
    damaged = {
        "nothing": b"",
        "something else": b"hello " * 100,
        "a byte changed": recording[:middle] + bytes([recording[middle] ^ 0xFF]) + recording[middle + 1 :],
        "no JSON in it": gzip.compress(b'{"schema": 1'),
        "another schema": gzip.compress(b'{"schema": 999}\n'),
        "wrong types": gzip.compress(lines.replace(b'"threads":', b'"threads": 7, "x":')),
    }
    for name, data in damaged.items():
        file = tmp_path / f"{name}.gz"
        file.write_bytes(data)
        result = innoscope("replay", file)
        assert_one_clear_error(result, BadFile.exit_code, str(file))


def test_a_truncated_recording_is_shown_up_to_its_end(recording: bytes, tmp_path: Path) -> None:
    file = tmp_path / "cut.gz"
    file.write_bytes(recording[: len(recording) * 2 // 3])

    result = innoscope("replay", file)

    assert (result.returncode, result.stderr) == (0, "")
    assert "the last line is incomplete" in result.stdout


def test_a_missing_recording_is_reported(tmp_path: Path) -> None:
    result = innoscope("replay", tmp_path / "none.gz")

    assert_one_clear_error(result, BadFile.exit_code, "none.gz", remedy=False)


# Output files


@pytest.mark.parametrize("path", ["/nonexistent/folder/out.txt", "/proc/out.txt", "/dev/full"])
def test_an_output_file_that_cannot_be_written_is_reported(pretender: Pretender, path: str) -> None:
    result = innoscope("stacks", "--pid", pretender.pid, "--output", path)

    assert_one_clear_error(result, CannotWrite.exit_code, f"cannot write {path}")
    assert result.stdout == ""


def test_a_failed_command_keeps_the_old_output_file(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    file.write_text("from yesterday")

    result = innoscope("stacks", "--pid", os.getpid(), "--output", file)

    assert_one_clear_error(result, NotAServer.exit_code)
    assert file.read_text() == "from yesterday"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_behind_stdout_is_reported(pretender: Pretender) -> None:
    result = innoscope("stacks", "--pid", pretender.pid, under=["sh", "-c", 'exec "$@" > /dev/full', "sh"])

    assert_one_clear_error(result, CannotWrite.exit_code, "No space left")
