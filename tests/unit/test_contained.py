"""The helpers that run commands in a container's namespaces find the right process."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from safety.contained import beyond_nsenter
from waiting import until


def test_a_command_without_nsenter_is_the_process_itself() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert beyond_nsenter(process) == process.pid
    finally:
        process.kill()
        process.wait()


def test_an_nsenter_without_a_child_is_awaited_without_using_the_cpu(tmp_path: Path) -> None:
    """Let a process have the name of nsenter, which the kernel takes from the path, and start no child."""
    sleep = shutil.which("sleep")
    assert sleep is not None
    (tmp_path / "nsenter").symlink_to(sleep)
    process = subprocess.Popen([tmp_path / "nsenter", "0.5"])
    # The kernel sets the name after it has released the parent (begin_new_exec in fs/exec.c).
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "nsenter\n")
    before = time.thread_time()
    with pytest.raises(RuntimeError, match="exited with 0"):
        beyond_nsenter(process)
    assert time.thread_time() - before < 0.2
