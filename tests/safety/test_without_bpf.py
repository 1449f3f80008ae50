"""Test that procfs replaces BPF where BPF is denied, and that commands stop threads only on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights
from safety.command import assert_one_clear_error, innoscope, run
from safety.counter import Counter
from safety.privileges import as_user, denying, without_bpf
from safety.strangers import UID, Strangers
from servers import Server, fetch
from workloads import Idle, Sleep

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

PTRACE_ONLY = ["setpriv", "--bounding-set", "-all,+sys_ptrace", "--inh-caps=-all"]
COMMANDS = [("stacks",), ("top", "--record", "FILE", "--duration", "1"), ("diagnose", "--seconds", "2")]
STOPPED = "each thread was stopped briefly (ptrace)"
SLEEPERS = 10
#: Start the server under a user of its own, as systemd does. Its files are mounted in a directory that this
#: user may search, which /root is not.
_UNDER_ITS_USER = f"""
mount --bind "$1" /mnt
mount -t tmpfs -o mode=755 tmpfs /root
mkdir -p "$1"
mount --move /mnt "$1"
shift
for word; do
    case $word in --datadir=*) chown -R {UID} "${{word#*=}}/.." ;; esac
done
exec setpriv --reuid={UID} --regid={UID} --clear-groups "$@"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mariadb-10.11") as server, Idle(server, 20), Sleep(server, SLEEPERS):
        yield server


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_work_and_stop_nothing(server: Server, command: tuple[str, ...], tmp_path: Path) -> None:
    command = tuple(str(tmp_path / "top") if word == "FILE" else word for word in command)
    with Counter(server.pid) as counter:
        result = innoscope(*command, "--pid", server.pid, under=without_bpf())

    assert "Traceback" not in result.stderr
    assert result.returncode in (0, 18), result.stderr
    assert counter.seen is not None
    assert (counter.seen.stopped_threads, counter.seen.ptrace_calls) == (0, 0)


def check_threads(result: subprocess.CompletedProcess[str]) -> None:
    """Check that `stacks` has read all threads by procfs, except at most one, which may have run."""
    assert result.returncode == 0, result.stderr
    dump = json.loads(result.stdout)
    assert dump["method"] == "procfs"
    assert sum(thread["wait"] == "user_sleep" for thread in dump["threads"]) == SLEEPERS
    complete = sum(thread["trust"] in ("exact", "inferred", "on_cpu") for thread in dump["threads"])
    assert complete >= len(dump["threads"]) - 1


@pytest.mark.parametrize(
    "rights",
    [
        pytest.param(without_bpf(), id="root without BPF"),
        pytest.param(PTRACE_ONLY, id="CAP_SYS_PTRACE only"),
    ],
)
def test_stacks_are_read_by_procfs(server: Server, rights: list[str]) -> None:
    result = innoscope("stacks", "--pid", server.pid, "--json", "--all", under=rights)

    check_threads(result)


def test_doctor_says_that_probes_do_not_work(server: Server) -> None:
    denied = denying("bpf", "perf_event_open")
    result = innoscope("doctor", "--pid", server.pid, "--json", under=denied)

    checks = {check["name"]: check for check in json.loads(result.stdout)["host"]}
    assert checks["uprobes"]["detail"].startswith("no probes: BPF links do not work"), result.stderr
    assert checks["snapshots"]["detail"].startswith("procfs works")


def test_the_owner_of_a_server_needs_no_privileges(folder: Path) -> None:
    with Strangers(folder) as made:
        pid = made.start(uid=UID)
        result = run(as_user(UID, "stacks", "--pid", pid, "--json"))

    assert result.returncode == 0, result.stderr
    dump = json.loads(result.stdout)
    assert dump["method"] == "procfs"
    assert [thread["trust"] for thread in dump["threads"]] == ["exact"]


def test_the_owner_of_a_server_sees_all_threads() -> None:
    under = ["unshare", "--mount", "sh", "-ec", _UNDER_ITS_USER, "sh", str(fetch("mysql-5.6.24").home)]
    with Server("mysql-5.6.24", prefix=under) as server, Idle(server, 20), Sleep(server, SLEEPERS):
        result = run(as_user(UID, "stacks", "--pid", server.pid, "--json", "--all"))

    check_threads(result)


def test_a_method_that_was_chosen_is_not_replaced(server: Server) -> None:
    with Counter(server.pid) as counter:
        result = innoscope("stacks", "--pid", server.pid, "--method", "bpf", under=without_bpf())

    assert_one_clear_error(result, NoRights.exit_code, "snapshot program")
    assert counter.seen is not None
    assert (counter.seen.stopped_threads, counter.seen.ptrace_calls) == (0, 0)


def test_ptrace_is_used_only_if_it_is_chosen(server: Server) -> None:
    result = innoscope("stacks", "--pid", server.pid, "--method", "ptrace", under=without_bpf())

    assert result.returncode == 0, result.stderr
    assert STOPPED in result.stdout.splitlines()[0]
    assert int(result.stdout.split()[0]) > 20, "threads are missing"
