"""The result of one check, and the verdict on all checks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from innoscope.common.errors import ExitCode

#: The names of the checks that decide the verdict.
SNAPSHOTS: Final = "snapshots"
PTRACE: Final = "ptrace"


class CheckStatus(StrEnum):
    """Status of a check. ``warn``: an optional feature is missing; ``fail``: stacks do not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class DoctorVerdict(IntEnum):
    """The overall result of ``innoscope doctor``, which is also its exit code."""

    WORKS = ExitCode.SUCCESS  # snapshots of all checked servers work without stopping threads
    NO_SERVER = ExitCode.NO_TARGET  # the host was checked, but no server is running
    FALLBACK = ExitCode.PTRACE_ONLY  # only --method ptrace works; it stops each thread for microseconds
    NOTHING = ExitCode.NO_STACKS  # no method works, or a server cannot be accessed


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. ``remedy`` is the command or step that fixes the problem, if there is one."""

    name: str
    status: CheckStatus
    detail: str
    remedy: str | None = None


def ok(name: str, detail: str) -> CheckResult:
    """Return the result of a check that passed."""
    return CheckResult(name, CheckStatus.OK, detail)


def warn(name: str, detail: str, remedy: str | None = None) -> CheckResult:
    """Return the result for a feature that is missing or degraded, but is not needed for stacks."""
    return CheckResult(name, CheckStatus.WARN, detail, remedy)


def fail(name: str, detail: str, remedy: str | None = None) -> CheckResult:
    """Return the result of a failed check, which means that stacks do not work."""
    return CheckResult(name, CheckStatus.FAIL, detail, remedy)
