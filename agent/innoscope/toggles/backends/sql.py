"""Change settings over SQL with ``SET GLOBAL``, and read them back with ``SELECT @@global``.

No statement waits for a metadata lock, and each has a timeout.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any, Final

import pymysql

from innoscope.common.errors import InnoscopeError, SqlFailed
from innoscope.target import sql
from innoscope.target.container import differing_namespaces
from innoscope.target.peer import WrongPeer
from innoscope.target.proc import ProcFs
from innoscope.toggles.model import ChangeFailed, ChangeRefused, ChangeStep, NotOnThisServer, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.login import Connection
    from innoscope.target.model import Target
    from innoscope.toggles.model import Assignment, Backend, Raw

#: Timeout for a login and for each query, in seconds.
_ANSWER: Final = 5.0
#: Timeout in seconds for a change, which may require the server to flush pages or resize memory first.
_CHANGE: Final = 60.0
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_WORD: Final = re.compile(r"\w+", re.ASCII)
_PRIVILEGES: Final = re.compile(r"need \(at least one of\) the (.+?) privilege", re.DOTALL)

_TOO_MANY: Final = 1040  # ER_CON_COUNT_ERROR
_UNKNOWN: Final = 1193  # ER_UNKNOWN_SYSTEM_VARIABLE
_READ_ONLY: Final = 1238  # ER_INCORRECT_GLOBAL_LOCAL_VAR
_DENIED: Final = (1045, 1227)  # ER_ACCESS_DENIED_ERROR, ER_SPECIFIC_ACCESS_DENIED_ERROR
_LOST: Final = (2006, 2013)  # CR_SERVER_GONE_ERROR, CR_SERVER_LOST: the statement may have been executed


class NoLogin(NotOnThisServer):
    """SQL is unavailable: the server does not respond, or it refuses the login. Another backend may work."""


class LockedOut(NoLogin):
    """The server reports "Too many connections" (1040), even on its extra port if it has one."""


class SqlWriter:
    """Sets global system variables of one target.

    ``warnings`` holds the server's warnings about changes that succeeded. The connection is opened on first
    use and reused, because a server with too many connections might not accept another connection.
    """

    kind = "sql"

    def __init__(self, target: Target, account: LoginOptions) -> None:
        self.warnings: list[str] = []
        self._target = target
        self._account = account
        self._proc = ProcFs()
        self._open: Connection | None = None

    def __enter__(self) -> SqlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        if self._open is not None:
            with contextlib.suppress(Exception):
                self._open.abandon()
            self._open = None

    def prepare(self, backend: Backend, new: Sequence[Raw | None]) -> tuple[ChangeStep, ...]:
        """Return the steps with the current values; write nothing. ``new`` holds one value per assignment.

        Raise NoLogin if SQL is unavailable, LockedOut if there are too many connections, or NotOnThisServer
        if this server does not have one of the variables.
        """
        names = [one.setting.name for one in backend.assignments]
        try:
            now = self._values(names)
        except ChangeFailed as error:
            raise NoLogin(f"SQL is unavailable: {error.what}", remedy=error.remedy) from error
        return tuple(
            ChangeStep(name, old, _bounded(one, old, wanted))
            for name, one, old, wanted in zip(names, backend.assignments, now, new, strict=True)
        )

    def read(self, step: ChangeStep) -> Raw:
        """Return the variable's current value.

        Raise NotOnThisServer if this server does not have the variable, or ChangeFailed if the server does
        not reply in time or has exited.
        """
        return self._values([step.setting])[0]

    def write(self, step: ChangeStep) -> None:
        """Run ``SET GLOBAL``, and read the value back.

        Raise ChangeRefused if the server refused the change: nothing was written. Raise ChangeFailed if
        the server set another value or did not reply in time.
        """
        if step.new is None:
            raise ChangeRefused(f"cannot change {step.setting}: no value", remedy="innoscope toggle list")
        statement = f"SET GLOBAL {_checked(step.setting)} = {_literal(step.new)}"
        with self._explaining(step.setting, statement), self._with_change_timeout() as connection:
            sql.raw_rows(connection, statement)
            warnings = [str(row[2]) for row in sql.raw_rows(connection, "SHOW WARNINGS")]
        now = self.read(step)
        if not same(now, step.new):
            details = f": {'; '.join(warnings)}" if warnings else ""
            raise ChangeFailed(
                f"the server set {step.setting} to {now} instead of {step.new}{details}",
                remedy=f"innoscope toggle undo, or SET GLOBAL {step.setting} = {_literal(step.old or 0)}",
            )
        self.warnings += [f"{step.setting}: {words}" for words in warnings]

    def _values(self, names: Sequence[str]) -> tuple[Raw, ...]:
        if not names:
            return ()
        statement = "SELECT " + ", ".join(f"@@global.{_checked(name)}" for name in names)
        connection = self._connection()
        with self._explaining(" and ".join(names), statement):
            return tuple(_plain(value) for value in sql.raw_rows(connection, statement)[0])

    def _connection(self) -> Connection:
        if self._open is None:
            self._open = self._connect()
        return self._open

    def _connect(self) -> Connection:
        account = self._account
        try:
            return sql.connect(self._target, account.defaults_file, account.user, _ANSWER, proc=self._proc)
        except WrongPeer as error:
            raise ChangeRefused(error.what, remedy=error.remedy) from error
        except SqlFailed as error:
            if _code(error) != _TOO_MANY:
                raise NoLogin(f"SQL is unavailable: {_short(error)}", remedy=error.remedy) from error
            return self._extra_port(error)

    def _extra_port(self, full: SqlFailed) -> Connection:
        """Connect to extra_port (MariaDB, Percona) or the admin port (MySQL), which have their own limits.

        Raise LockedOut if no such port accepts the login.
        """
        for port in self._other_ports():
            with contextlib.suppress(SqlFailed):
                return sql.connect_tcp(
                    "127.0.0.1", port, self._account.defaults_file, self._account.user, _ANSWER,
                    target=self._target, proc=self._proc,
                )  # fmt: skip
        raise LockedOut(
            "SQL is unavailable: too many connections, and no extra port accepts the login",
            remedy="innoscope toggle set max_connections NUMBER --for 10m raises the limit without a login",
        ) from full

    def _other_ports(self) -> list[int]:
        """Return the other TCP ports on which the server listens; empty if they cannot be determined.

        They cannot be determined if the server is in another network namespace.
        """
        if "net" in differing_namespaces(self._proc, self._target.pid):
            return []
        try:
            inodes = self._proc.socket_inodes(self._target.pid)
            listeners = self._proc.tcp_listeners(self._target.pid)
        except (OSError, InnoscopeError):
            return []
        return sorted({port for inode, port in listeners if inode in inodes and port != self._target.port})

    @contextlib.contextmanager
    def _with_change_timeout(self) -> Iterator[Connection]:
        """Yield the connection with the longer timeout that a change needs."""
        connection = self._connection()
        with connection.answer_timeout(_CHANGE):
            yield connection

    @contextlib.contextmanager
    def _explaining(self, what: str, statement: str) -> Iterator[None]:
        try:
            yield
        except pymysql.MySQLError as error:
            code, words = (*error.args, "")[:2] if error.args else (None, "")
            if code in _LOST or not isinstance(code, int) or not words:
                self.close()
                raise ChangeFailed(
                    f"the server did not answer in time, or is gone: {statement}",
                    remedy="innoscope stacks shows what it is doing",
                ) from error
            raise _refusal(code, str(words), what, self._user()) from error

    def _user(self) -> str:
        user = self._open.user if self._open is not None else None
        return user.decode(errors="replace") if isinstance(user, bytes) else user or "USER"


def _refusal(code: int, words: str, what: str, user: str) -> ChangeRefused:
    """Return the error for a statement that the server refused: nothing was written."""
    if code == _UNKNOWN:
        return NotOnThisServer(f"this server has no {what}: {words}", remedy="innoscope toggle list")
    if code == _READ_ONLY:
        return NotOnThisServer(
            f"{what} cannot be changed while the server is running: {words}", remedy="innoscope toggle list"
        )
    if code in _DENIED:
        named = _PRIVILEGES.search(words)
        # The last privilege is the narrowest: "SUPER or SYSTEM_VARIABLES_ADMIN", "SUPER, CONNECTION ADMIN".
        privilege = re.split(r",\s*|\s+or\s+", named[1])[-1] if named else "SUPER"
        return ChangeRefused(
            f"this account may not change {what}: {words}",
            remedy=f"GRANT {privilege} ON *.* TO '{user}'@'localhost'",
        )
    return ChangeRefused(
        f"the server refuses to change {what}: {words} ({code})", remedy="innoscope toggle show NAME"
    )


def _bounded(one: Assignment, old: Raw, wanted: Raw | None) -> Raw | None:
    """Return the value to write. A bound setting keeps its old value if that is high or low enough."""
    if one.bound is None or wanted is None:
        return wanted
    farther = max if one.bound == "raise" else min
    return farther(old, wanted, key=float)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ChangeRefused(f"invalid name of a system variable: {name!r}")
    return name


def _literal(raw: Raw) -> str:
    """Return the value as an SQL literal. Raise ChangeRefused if a word would need escaping."""
    if isinstance(raw, bool):
        return "ON" if raw else "OFF"
    if isinstance(raw, str):
        if not _WORD.fullmatch(raw):
            raise ChangeRefused(f"invalid value of a system variable: {raw!r}")
        return f"'{raw}'"
    return repr(raw)


def _plain(value: Any) -> Raw:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if value is None:
        return ""
    return value if isinstance(value, int | float | str) else float(value)


def _code(error: SqlFailed) -> object:
    """Return the server's or client's error number, or None."""
    args = error.__cause__.args if error.__cause__ is not None else ()
    return args[0] if args else None


def _short(error: SqlFailed) -> str:
    return error.what.removeprefix("no SQL: ")
