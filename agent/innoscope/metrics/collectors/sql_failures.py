"""Convert an SQL error to a failure reason (exported as a label) and a message."""

from __future__ import annotations

import errno
from typing import Final

from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.target.choice import NotChosen

#: Failure reason for each error number from the server, the client library or the kernel (mysqld_error.h,
#: errmsg.h, errno.h).
_REASONS: Final = {
    errno.ESRCH: "refused",  # the server has exited
    1040: "refused",  # too many connections
    1044: "denied",
    1045: "denied",
    1053: "refused",  # the server is shutting down
    1129: "refused",  # the host is blocked
    1130: "denied",  # the host is not allowed
    1142: "denied",
    1203: "refused",  # max_user_connections
    1226: "refused",  # the account's max_user_connections
    1227: "denied",
    1317: "timeout",  # ER_QUERY_INTERRUPTED, by our own max_execution_time or by KILL QUERY
    1698: "denied",
    1969: "timeout",  # MariaDB's max_statement_time
    2002: "refused",
    2003: "refused",
    2006: "gone",
    2013: "gone",
    2059: "denied",
    3024: "timeout",  # MySQL's max_execution_time
}
_PREFIX: Final = "no SQL: "


def explain(error: BaseException) -> CollectorFailed:
    """Return the CollectorFailed to report for this error."""
    if isinstance(error, CollectorFailed):
        return error
    if not isinstance(error, InnoscopeError):
        return CollectorFailed("error", f"{type(error).__name__}: {error}")
    reason = _reason(error)
    words = error.what.removeprefix(_PREFIX)
    if (reason == "denied" or isinstance(error, NotChosen)) and error.remedy:
        words += f" ({error.remedy})"
    return CollectorFailed(reason, words)


def denied_words(error: SqlFailed) -> str | None:
    """Return the error's message if it reports a missing privilege, else None."""
    failed = explain(error)
    return failed.words if failed.reason == "denied" else None


def _reason(error: InnoscopeError) -> str:
    if isinstance(error, BadFile):
        return "denied"  # the option file cannot be used, so there are no credentials
    cause = error.__cause__
    if cause is None:
        return "refused" if isinstance(error, SqlFailed) else "error"
    if _timed_out(cause):
        return "timeout"
    code = cause.args[0] if cause.args else None
    return _REASONS.get(code, "error") if isinstance(code, int) else "error"


def _timed_out(error: BaseException) -> bool:
    """Return whether the server did not respond in time, for example because it is stopped or hangs."""
    inner = getattr(error, "original_exception", None) or error.__cause__ or error.__context__
    if isinstance(inner, TimeoutError):
        return True
    # A non-blocking connect(2) to a Unix socket whose backlog is full fails with EAGAIN.
    if isinstance(inner, OSError) and inner.errno == errno.EAGAIN:
        return True
    return "timed out" in str(error.args[-1] if error.args else "")
