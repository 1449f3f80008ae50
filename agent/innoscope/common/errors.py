"""Errors that end a command: what failed, on what, why, and which command to run next."""

from __future__ import annotations


class InnoscopeError(Exception):
    """Base of all errors that end a command with one clear line.

    ``exit_code`` differs by cause so that scripts can tell them apart; docs/cli.md lists the codes.
    """

    exit_code = 1

    def __init__(self, what: str, *, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class NoTarget(InnoscopeError):
    """No running server matches, or several do and none was named."""

    exit_code = 3


class NoSuchProcess(InnoscopeError):
    """The pid does not exist, has just ended, or now belongs to another process."""

    exit_code = 4


class NotAServer(InnoscopeError):
    """The process exists but is not a mysqld or mariadbd."""

    exit_code = 5


class NoRights(InnoscopeError):
    """The kernel denied access: not root, or a capability is missing."""

    exit_code = 6


class KernelUnable(InnoscopeError):
    """This kernel lacks a feature that the chosen method needs."""

    exit_code = 7


class SqlFailed(InnoscopeError):
    """The server did not answer over SQL in time, or refused the account."""

    exit_code = 8


class BadFile(InnoscopeError):
    """A file is damaged, malformed or of the wrong kind."""

    exit_code = 9


class NotRead(BadFile):
    """A file or process was not read because it exceeds a limit. Retrying does not help."""


class CannotWrite(InnoscopeError):
    """The output could not be written: no such folder, permission denied or disk full."""

    exit_code = 12
