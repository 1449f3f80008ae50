"""Query the threads' statements in the background, so that the view continues if SQL fails or hangs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.target import sql
from innoscope.target.unanswered import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.target.login import Connection
    from innoscope.target.model import Query, Target

RETRY_S = 5.0  # pause after a failure; doubled after each further failure, up to MAX_RETRY_S
MAX_RETRY_S = 60.0


class SqlAsk:
    """Runs the query over one persistent connection, and reconnects after a failure."""

    def __init__(self, target: Target, *, options_file: str | None = None, user: str | None = None) -> None:
        self._target = target
        self._options_file = options_file
        self._user = user
        self._connection: Connection | None = None
        self._unanswered = Unanswered()

    def __call__(self) -> Mapping[int, Query]:
        """Return the statement of each thread. On any failure, close the connection and raise."""
        if self._connection is None:
            self._connection = sql.connect(
                self._target, self._options_file, self._user, unanswered=self._unanswered
            )
        try:
            return sql.queries(self._target, self._connection)
        except Exception:
            with suppress(Exception):
                self._connection.close()
            self._connection = None
            raise


class QueryFeed:
    """Runs one query at a time in a daemon thread, so that a hanging server does not block the caller.

    The argument ``ask`` returns the statement of each thread, by thread id in the server's pid namespace.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[int, Query]],
        *,
        retry_s: float = RETRY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._retry_s = retry_s
        self._clock = clock
        self._wanted = threading.Event()
        self._done = threading.Event()
        self._answer: Mapping[int, Query] | None = None
        self._failure: str | None = None
        self._asked_at: float | None = None
        threading.Thread(target=self._run, name="innoscope-sql", daemon=True).start()

    def ask(self) -> None:
        """Start a query, unless one is running or the pause after a failure has not ended."""
        if self._asked_at is None:
            self._asked_at = self._clock()
            self._done.clear()
            self._wanted.set()

    def take(self, patience_s: float) -> Mapping[int, Query] | None:
        """Return the result of the last query.

        Return None if the query failed, or if its result does not arrive within ``patience_s`` seconds.
        """
        return self._answer if self._done.wait(patience_s) else None

    @property
    def problem(self) -> str | None:
        """Return the reason why statements are missing; None if they are available."""
        asked_at = self._asked_at
        if self._failure is None and asked_at is not None and (waited_s := self._clock() - asked_at) > 1:
            return f"the server has not answered SQL queries for {waited_s:.0f} s"
        return self._failure

    def _run(self) -> None:
        pause = self._retry_s
        while True:
            self._wanted.wait()
            self._wanted.clear()
            try:
                self._answer, self._failure = self._ask(), None
            except InnoscopeError as error:
                self._answer, self._failure = None, error.in_one_line
            except BaseException as error:  # an exception in the driver must not end the view
                self._answer, self._failure = None, f"no statements: {type(error).__name__}: {error}"
            self._done.set()
            if self._failure is None:
                pause = self._retry_s
            else:
                time.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)
            self._asked_at = None
