"""Test snapshots of servers in separate namespaces, and of servers whose executable was replaced."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import snapshot_methods
from safety.command import innoscope
from safety.contained import NAMESPACES, ContainedServer, installed_in
from safety.counter import threads as threads_of
from servers import SERVERS, Server, fetch
from waiting import until
from workloads import Idle, Sleep

if TYPE_CHECKING:
    from collections.abc import Iterator

SLEEPERS = 5
IDLE = 10

#: A function on the stack of each sleeping thread.
NAMED = {"mariadb-11.4.5": "Item_func_sleep::val_int", "mysql-9.7": "dispatch_command"}


@pytest.fixture(scope="module", params=sorted(NAMED))
def contained(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Sleep]]:
    with ExitStack() as stack:
        server = stack.enter_context(ContainedServer(request.param))
        stack.enter_context(Idle(server, IDLE))
        yield server, stack.enter_context(Sleep(server, SLEEPERS))


def _target(pid: int) -> dict[str, Any]:
    result = innoscope("targets", "--json")
    assert result.returncode == 0, result.stderr
    [target] = [target for target in json.loads(result.stdout) if target["pid"] == pid]
    return dict(target)


def _snapshot(pid: int, *options: str) -> dict[str, Any]:
    result = innoscope("stacks", "--pid", pid, "--json", *options)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def _functions(thread: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in thread["frames"] if frame["function"]]


def _stacks(pid: int) -> list[tuple[str, ...]]:
    return sorted(tuple(_functions(thread)) for thread in _snapshot(pid)["threads"])


def _settled_stacks(pid: int) -> list[tuple[str, ...]]:
    """Wait until two snapshots have the same stacks, because a background thread may be busy for a moment."""

    def settled() -> list[tuple[str, ...]]:
        stacks = _stacks(pid)
        return stacks if _stacks(pid) == stacks else []

    return until(settled)


def test_the_sleepable_iterator_is_not_used_for_a_contained_server(contained: tuple[Server, Sleep]) -> None:
    server, _ = contained
    assert _snapshot(server.pid)["method"] == "bpf-nosleep"
    assert _snapshot(server.pid, "--method", "bpf")["method"] == "bpf"


def test_a_contained_server_is_identified_from_the_host(contained: tuple[Server, Sleep]) -> None:
    server, _ = contained
    spec = SERVERS[server.name]

    target = _target(server.pid)

    assert target["flavour"] == spec.flavour
    assert ".".join(map(str, target["version"])).startswith(spec.version.rstrip("."))
    assert target["container"] == NAMESPACES
    assert target["root"] == (str(server.installation.home) if spec.chroot else "/")
    assert target["port"] == server.port
    assert target["socket"] == f"{server.folder.inside}/s.sock"
    assert target["datadir"] == f"{server.folder.inside}/data"
    assert target["threads"] > IDLE + SLEEPERS
    assert not target["deleted"]


def test_the_output_names_the_namespaces(contained: tuple[Server, Sleep]) -> None:
    server, _ = contained

    assert NAMESPACES in innoscope("stacks", "--pid", server.pid).stdout.splitlines()[1]
    [line] = [line for line in innoscope("targets").stdout.splitlines() if line.split()[0] == str(server.pid)]
    assert f"own namespaces: {NAMESPACES}" in line


@pytest.mark.parametrize("option_name", ["pid", "socket", "port"])
def test_a_contained_server_is_found_by_pid_socket_and_port(
    contained: tuple[Server, Sleep], option_name: str
) -> None:
    """Use the socket's path on the host. The port is reachable: the server shares the host's network."""
    server, _ = contained
    option = {"pid": server.pid, "socket": server.socket, "port": server.port}[option_name]

    result = innoscope("stacks", f"--{option_name}", option, "--json")

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["target"]["pid"] == server.pid


@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_stacks_have_names_and_both_thread_ids(contained: tuple[Server, Sleep], method: str) -> None:
    server, workload = contained

    ours = threads_of(server.pid)
    dump = _snapshot(server.pid, "--method", method)

    ours |= threads_of(server.pid)  # a thread of a pool may have exited meanwhile
    threads = dump["threads"]
    assert {thread["tid"] for thread in threads} <= ours
    assert len(threads) > IDLE + SLEEPERS
    assert [thread["ns_tid"] for thread in threads if thread["tid"] == server.pid] == [1]
    by_inner = {thread["ns_tid"]: thread for thread in threads}
    sleeping = workload.os_threads()
    assert sleeping is not None
    assert len(sleeping) == SLEEPERS
    for inner in sleeping:
        assert NAMED[server.name] in " ".join(_functions(by_inner[inner])), by_inner[inner]
    complete = sum(thread["trust"] in ("exact", "inferred", "on_cpu") for thread in threads)
    assert complete >= len(threads) - 1  # one stack may be incomplete: the frame of _start has no caller


@pytest.mark.parametrize("method", snapshot_methods.ALL)
def test_queries_are_matched_by_the_inner_thread_id(contained: tuple[Server, Sleep], method: str) -> None:
    server, workload = contained

    threads = _snapshot(server.pid, "--method", method, "--queries", "--user", "root")["threads"]

    running = {thread["ns_tid"]: thread["query"]["digest_text"] for thread in threads if thread["query"]}
    sleeping = {inner for inner, text in running.items() if "SLEEP" in (text or "").upper()}
    assert sleeping == set(workload.os_threads() or ())
    assert len(running) >= IDLE + SLEEPERS + 1


def test_doctor_finds_no_problem(contained: tuple[Server, Sleep]) -> None:
    server, _ = contained

    result = innoscope("doctor", "--pid", server.pid, "--user", "root")

    assert (result.returncode, result.stderr) == (0, ""), result.stdout


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a directory in /tmp, to keep paths short: a Unix socket path is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="innoscope-upgrade-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize("replacement", ["another version", "nothing"])
def test_a_server_whose_executable_was_replaced_has_the_same_names(folder: Path, replacement: str) -> None:
    """Check that names come from the running file, and not from the new file at its path."""
    server = Server("mysql-5.6.24")
    server.installation = installed_in("mysql-5.6.24", folder / "server")
    with server, Idle(server, IDLE):
        before = _settled_stacks(server.pid)
        executable = server.installation.mysqld
        build_id = _target(server.pid)["build_id"]
        if replacement == "nothing":
            executable.unlink()
        else:
            new = folder / "new"
            shutil.copy2(fetch("mysql-5.5.9").mysqld, new)
            new.rename(executable)

        target = _target(server.pid)
        until(lambda: _stacks(server.pid) == before, lambda: (before, _stacks(server.pid)))
        text = innoscope("stacks", "--pid", server.pid).stdout
        listed = innoscope("targets").stdout

    assert target["deleted"]
    assert target["executable"] == str(executable)
    assert (target["version"], target["symbols"], target["build_id"]) == ([5, 6, 24], "symtab", build_id)
    assert "replaced" in listed
    assert "replaced" in text or "deleted" in text
