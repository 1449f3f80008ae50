"""The C source that bcc compiles selects the pid namespace of the thread ids."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from innoscope.probes import c_source

if TYPE_CHECKING:
    import pytest


def test_the_first_pid_namespace_needs_no_translation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(c_source, "FIRST_PID_NAMESPACE", os.stat("/proc/self/ns/pid").st_ino)  # noqa: PTH116

    assert list(c_source._namespace()) == []


def test_another_pid_namespace_is_named_in_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the device number has the kernel's internal encoding, with a minor number of 20 bits."""
    monkeypatch.setattr(c_source, "FIRST_PID_NAMESPACE", 1)
    ours = os.stat("/proc/self/ns/pid")  # noqa: PTH116
    device = os.major(ours.st_dev) << 20 | os.minor(ours.st_dev)

    assert list(c_source._namespace()) == [
        f"#define PID_NAMESPACE_DEVICE {device}ULL",
        f"#define PID_NAMESPACE {ours.st_ino}ULL",
    ]
