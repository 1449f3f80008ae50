"""Measure the throughput of a server before and during a forced trace."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from innoscope.common.errors import BadFile, SqlFailed
from innoscope.target import sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.target.model import Target

#: Status variables and the work that they count. Questions counts a long statement only once, so the rows
#: read are included as well.
_STATUS: Final = {"Questions": "statements", "Innodb_rows_read": "InnoDB rows read"}
SWITCHES: Final = "voluntary context switches"
#: Seconds spent measuring the throughput before the trace.
BEFORE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Loss:
    """The cost of a forced trace: ``spent`` CPU seconds in ``seconds``, from hits and their calibrated cost.

    ``before`` and ``during`` contain the server's throughput per second, by kind of work. ``why_no_sql`` is
    the reason why SQL provided no figures.
    """

    spent: float
    seconds: float
    share: float  # of the CPUs that the server may use
    before: dict[str, float]
    during: dict[str, float]
    why_no_sql: str | None = None


@dataclass(frozen=True, slots=True)
class _Counts:
    at: float  # time.monotonic()
    counts: Mapping[str, float]


class ServerPace:
    """A meter of a server's throughput, from its status variables and its threads' context switches."""

    def __init__(self, target: Target, defaults_file: str | None = None, user: str | None = None) -> None:
        self.why_no_sql: str | None = None
        self._pid = target.pid
        self._connection: Any = None
        try:
            self._connection = sql.connect(target, defaults_file, user)
        except (SqlFailed, BadFile) as error:
            self.why_no_sql = error.what
        self._last = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            with suppress(OSError):
                self._connection.close()

    def measure(self) -> dict[str, float]:
        """Measure for ``BEFORE_S`` seconds, and return the throughput in the format of ``rates``."""
        self.rates()
        time.sleep(BEFORE_S)
        return self.rates()

    def rates(self) -> dict[str, float]:
        """Return the throughput per second since the last call, by kind of work; omit unavailable kinds."""
        before, self._last = self._last, self._read()
        elapsed = max(self._last.at - before.at, 1e-9)
        return {
            name: (count - before.counts[name]) / elapsed
            for name, count in self._last.counts.items()
            if name in before.counts
        }

    def _read(self) -> _Counts:
        status = self._status()
        return _Counts(time.monotonic(), status | {SWITCHES: _switches(self._pid)})

    def _status(self) -> dict[str, float]:
        if self._connection is None:
            return {}
        names = ", ".join(f"'{name}'" for name in _STATUS)
        try:
            found = sql.rows(self._connection, f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")
            return {_STATUS[name]: float(value) for name, value in found}
        except SqlFailed as error:
            self.why_no_sql = error.what
            return {}


def _switches(pid: int) -> float:
    """Return the number of voluntary context switches of all threads.

    A statement usually causes at least one: afterward, the thread waits for the next statement.
    """
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("[0-9]*/status"):
        with suppress(OSError, ValueError):  # the thread has exited
            for line in status.read_text(errors="surrogateescape").splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    total += int(line.split()[1])
    return float(total)
