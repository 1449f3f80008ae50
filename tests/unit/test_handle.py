"""A handle signals the process it was opened for, and no other that was given its id."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.errors import KernelUnable
from innoscope.target.proc import ProcFs
from innoscope.toggles.handle import Handle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def start_time(process: subprocess.Popen[bytes]) -> int:
    return ProcFs().stat(process.pid).start_time


def opened(process: subprocess.Popen[bytes]) -> Handle:
    handle = Handle.open(process.pid, start_time(process), "the sleeper")
    assert handle is not None
    return handle


def test_it_signals_and_sees_the_end(sleeper: subprocess.Popen[bytes]) -> None:
    with opened(sleeper) as handle:
        assert not handle.ended()
        handle.send(signal.SIGTERM)
        assert handle.ended(10)
        handle.send(signal.SIGTERM)  # a zombie needs none
        assert sleeper.wait() == -signal.SIGTERM
        handle.send(signal.SIGTERM)  # and whoever has its id by now gets none


def test_another_start_time_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    assert Handle.open(sleeper.pid, start_time(sleeper) + 1, "the sleeper") is None


def test_no_process(sleeper: subprocess.Popen[bytes]) -> None:
    began = start_time(sleeper)
    sleeper.kill()
    sleeper.wait()

    assert Handle.open(sleeper.pid, began, "the sleeper") is None


def test_a_kernel_without_pidfds(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    with pytest.raises(KernelUnable, match="this kernel has none") as refused:
        opened(sleeper)
    assert f"kill -CONT {sleeper.pid}" in str(refused.value.remedy)


def test_a_python_without_pidfds(sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(KernelUnable, match="this Python has none"):
        opened(sleeper)
