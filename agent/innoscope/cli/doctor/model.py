"""The result of one check, and the verdict on all checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from innoscope.common.errors import ExitCode


class Status(StrEnum):
    """Status of a check. ``warn``: an optional feature is missing; ``fail``: stacks will be missing."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Verdict(IntEnum):
    """The exit code of ``innoscope doctor``."""

    WORKS = ExitCode.SUCCESS  # snapshots of all checked servers work without stopping threads
    NO_SERVER = ExitCode.NO_TARGET  # the host was checked, but no server is running
    FALLBACK = ExitCode.PTRACE_ONLY  # only --method ptrace works; it stops each thread for microseconds
    NOTHING = ExitCode.NO_STACKS  # no method works, or a server cannot be accessed


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check. ``remedy`` is the next command to type, if there is one."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> Check:
    """Return a check that passed."""
    return Check(name, Status.OK, detail)


def warn(name: str, detail: str, remedy: str | None = None) -> Check:
    """Return a check that found something missing or degraded; stacks do not need it."""
    return Check(name, Status.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str | None = None) -> Check:
    """Return a check that failed: it found the reason why something will not work."""
    return Check(name, Status.FAIL, detail, remedy)
