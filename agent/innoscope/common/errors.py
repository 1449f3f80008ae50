"""Errors that end a command. Each states what failed, on what and why, and most also name a remedy."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes. Each has the same meaning in all commands. docs/cli.md lists them."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """Create a member: an integer with a ``meaning``."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    SUCCESS = 0, "success"
    FAILURE = 1, "a failure without a code of its own; `innoscope --debug …` prints the traceback"
    USAGE = 2, "invalid command line: an unknown option, an invalid or ambiguous argument"
    NO_TARGET = 3, "no process was selected: none matches, or several match"
    NO_SUCH_PROCESS = 4, "the process does not exist or has exited, or its pid was reused"
    WRONG_PROCESS = 5, "the process exists, but is not a server (`self-profile`: not an agent or sensor)"
    NO_RIGHTS = 6, "missing privileges"
    KERNEL_UNABLE = 7, "this kernel does not support the chosen method"
    SQL_FAILED = 8, "SQL failed"
    BAD_FILE = 9, "a damaged or untrusted file"
    PTRACE_ONLY = 10, "`doctor`: stacks work, but only with `--method ptrace`, which stops threads"
    NO_STACKS = 11, "`doctor`: stacks do not work"
    CANNOT_WRITE = 12, "cannot write the output"
    SENSOR_DOWN = 13, "the sensor does not answer"
    REFUSED = 14, "refused because of a risk or a cost: nothing was changed; the reason is printed"
    NOT_SUPPORTED = 15, "this server does not have the setting or the function; the reason is printed"
    CHANGE_FAILED = 16, "the server could not be changed as requested; `toggle history` shows the attempt"
    PUSH_REJECTED = 17, "the profile receiver rejected a profile; the reason is printed"
    FOUND = 18, "`diagnose`: something is wrong; the findings are printed"
    DIFFERENT = 19, "`diff`: there are differences; they are printed"
    TRACED = 20, "another debugger is attached to the process"
    CANNOT_TELL = 21, "`diagnose`: no findings, but no snapshot was taken, so a stall may have been missed"
    AGENT_FAILED = (
        22,
        "`incidents`: an agent did not answer as expected; the incidents of the other agents are printed",
    )
    INTERRUPTED = 130, "interrupted by Ctrl-C or Ctrl-Z (a suspended command could not detach its probes)"
    BROKEN_PIPE = 141, "the reader of the output closed the pipe"


class InnoscopeError(Exception):
    """Base class of all errors that end a command with a message instead of a traceback.

    ``exit_code`` depends on the cause, so that scripts can distinguish errors.
    """

    exit_code = ExitCode.FAILURE

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    @property
    def in_one_line(self) -> str:
        """Return the message, followed by the remedy in parentheses."""
        return f"{self.what} ({self.remedy})" if self.remedy else self.what


class NoTarget(InnoscopeError):
    """No running process matches, or several match and none was selected."""

    exit_code = ExitCode.NO_TARGET


class NoSuchProcess(InnoscopeError):
    """The pid does not exist, has exited, or now belongs to another process."""

    exit_code = ExitCode.NO_SUCH_PROCESS


class NotAServer(InnoscopeError):
    """The process exists, but is not a mysqld or mariadbd."""

    exit_code = ExitCode.WRONG_PROCESS


class NoRights(InnoscopeError):
    """Access was denied, because we are not root, or lack a capability or a file permission."""

    exit_code = ExitCode.NO_RIGHTS


class Traced(InnoscopeError):
    """Another debugger is attached to the process."""

    exit_code = ExitCode.TRACED


class KernelUnable(InnoscopeError):
    """This kernel lacks a feature that the chosen method needs."""

    exit_code = ExitCode.KERNEL_UNABLE


class SqlFailed(InnoscopeError):
    """The server cannot be used over SQL: for example, it did not respond in time or rejected the account."""

    exit_code = ExitCode.SQL_FAILED


class BadFile(InnoscopeError):
    """A file is damaged, malformed or of the wrong kind."""

    exit_code = ExitCode.BAD_FILE


class NotRead(BadFile):
    """A file or process was not read because it exceeds a limit, or because reading it failed recently."""


class CannotWrite(InnoscopeError):
    """The output could not be written, for example because the disk is full or permission is denied."""

    exit_code = ExitCode.CANNOT_WRITE
