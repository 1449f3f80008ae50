"""If BPF is unavailable, no command stops a thread unless the user agrees on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import NoRights
from safety.command import assert_one_clear_error, innoscope
from safety.counter import Counter
from safety.privileges import without_bpf
from safety.terminal import run_on_terminal
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


def _stacks_on_terminal(server: Server, answer: bytes, code: int) -> str:
    """Run ``stacks`` on a host that denies BPF, answer its question and return its output."""
    output = run_on_terminal(
        ["stacks", "--pid", str(server.pid)], {"NO_COLOR": "1"}, typing=[(QUESTION.encode(), answer)],
        under=without_bpf(), code=code,
    )  # fmt: skip
    return output.decode()


@pytest.mark.parametrize("answer", [b"\n", b"n\n"])
def test_without_consent_no_thread_is_stopped(server: Server, answer: bytes) -> None:
    with Counter(server.pid) as counter:
        _stacks_on_terminal(server, answer, NoRights.exit_code)
    assert counter.seen is not None
    assert (counter.seen.stopped_threads, counter.seen.ptrace_calls) == (0, 0)


def test_with_consent_stacks_are_taken_by_ptrace(server: Server) -> None:
    assert STOPPED in _stacks_on_terminal(server, b"y\n", 0)


def test_an_explicit_ptrace_method_needs_no_consent(server: Server) -> None:
    result = innoscope("stacks", "--pid", server.pid, "--method", "ptrace", under=without_bpf())

    assert result.returncode == 0, result.stderr
    assert STOPPED in result.stdout.splitlines()[0]
    assert int(result.stdout.split()[0]) > 20, "threads are missing"
