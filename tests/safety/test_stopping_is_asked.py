"""Without BPF no command stops a thread by itself: it asks on a terminal, else it is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights
from safety.command import assert_one_clear_error, innoscope
from safety.counter import Counter
from safety.privileges import without_bpf
from safety.typing_terminal import on_terminal
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

STOPPED = "each thread was stopped for a moment (ptrace)"
QUESTION = "Stop each thread for some microseconds instead (--method ptrace)? [y/N]"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mariadb-10.11") as server, Idle(server, 20):
        yield server


@pytest.mark.parametrize(
    "command",
    [("stacks",), ("stacks", "--method", "bpf"), ("top", "--record", "/dev/null", "--duration", "1")],
)
def test_without_a_terminal_no_thread_is_stopped(server: Server, command: tuple[str, ...]) -> None:
    with Counter(server.pid) as counter:
        result = innoscope(*command, "--pid", server.pid, under=without_bpf())

    assert_one_clear_error(result, NoRights.exit_code, "snapshot program")
    assert "--method ptrace" in result.stderr
    assert counter.seen is not None
    assert (counter.seen.stopped_threads, counter.seen.ptrace_calls) == (0, 0)


@pytest.mark.parametrize("answer", ["\n", "n\n"])
def test_a_person_who_does_not_agree_is_obeyed(server: Server, answer: str) -> None:
    with Counter(server.pid) as counter:
        result = on_terminal("stacks", "--pid", server.pid, under=without_bpf(), answer=answer)

    assert QUESTION in result.said
    assert result.code == NoRights.exit_code, result.said
    assert counter.seen is not None
    assert (counter.seen.stopped_threads, counter.seen.ptrace_calls) == (0, 0)


def test_a_person_who_agrees_gets_the_same_threads(server: Server) -> None:
    result = on_terminal("stacks", "--pid", server.pid, under=without_bpf(), answer="y\n")

    assert QUESTION in result.said
    assert result.code == 0, result.said
    assert STOPPED in result.said


def test_ptrace_by_name_asks_nothing(server: Server) -> None:
    result = innoscope("stacks", "--pid", server.pid, "--method", "ptrace", under=without_bpf())

    assert result.returncode == 0, result.stderr
    assert STOPPED in result.stdout.splitlines()[0]
    assert int(result.stdout.split()[0]) > 20, "it shows the same threads"
