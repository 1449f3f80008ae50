"""The outcome of one check, and of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from innoscope.common.errors import ExitCode


class Status(StrEnum):
    """``warn``: something is missing and the rest works; ``fail``: this is why stacks will be missing."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Verdict(IntEnum):
    """The exit code of ``innoscope doctor``."""

    WORKS = ExitCode.SUCCESS  # stacks of every server that was checked, nothing stopped
    NO_SERVER = ExitCode.NO_TARGET  # the host was checked, no server is running
    FALLBACK = ExitCode.PTRACE_ONLY  # only --method ptrace: each thread is held for microseconds
    NOTHING = ExitCode.NO_STACKS  # no method works, or not for every server


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
    """Return a check that found something missing that stacks do not need."""
    return Check(name, Status.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str | None = None) -> Check:
    """Return a check that found why something will not work."""
    return Check(name, Status.FAIL, detail, remedy)
