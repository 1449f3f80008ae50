"""What a server gets done while it is traced by force, and before: what that cost it, in its own terms."""

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

#: Status variables, and what they count. Rows: one long statement is work as well.
_STATUS: Final = {"Questions": "statements", "Innodb_rows_read": "InnoDB rows read"}
SWITCHES: Final = "voluntary context switches"
#: How long the pace before is watched for.
BEFORE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Loss:
    """What a forced trace cost: ``spent`` seconds of CPU in ``seconds``, by hits times their calibrated cost.

    ``before`` and ``during`` are what the server got done a second, by what was counted; ``why_no_sql`` says
    why it was not asked itself.
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


class Pace:
    """Counts what a server gets done: over SQL, and by the kernel's counters of its threads."""

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

    def watch(self) -> dict[str, float]:
        """A second of it: what it gets done without us."""
        self.lap()
        time.sleep(BEFORE_S)
        return self.lap()

    def lap(self) -> dict[str, float]:
        """What it got done a second, since the last time; only what was counted both times."""
        before, self._last = self._last, self._read()
        elapsed = max(self._last.at - before.at, 1e-9)
        return {
            name: (count - before.counts[name]) / elapsed
            for name, count in self._last.counts.items()
            if name in before.counts
        }

    def _read(self) -> _Counts:
        told = self._told()
        return _Counts(time.monotonic(), told | {SWITCHES: _switches(self._pid)})

    def _told(self) -> dict[str, float]:
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
    """How often its threads went to sleep by themselves: each statement waits for its client at least."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("[0-9]*/status"):
        with suppress(OSError, ValueError):  # a thread that ended
            for line in status.read_text(errors="surrogateescape").splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    total += int(line.split()[1])
    return float(total)
