"""InnoDB's status and the server's variables over SQL, for an incident file: asked once, reduced at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.diagnose.evidence import Missing
from innoscope.diagnose.incident import redaction
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.target.login import Connection
    from innoscope.target.model import Target

    Connect = Callable[[float], Connection]

#: Seconds for each answer.
_TIMEOUT_S: Final = 2.0
#: Not asked when more threads than this wait for row locks. All transactions are printed, each with the lock
#: that it waits for, under kernel_mutex (5.5), lock_sys->mutex and trx_sys->mutex (5.6), lock_sys' latch in
#: exclusive mode (8.0, MariaDB 10.6): nobody can lock a row meanwhile. With 150 waiting, 1 to 3 ms on all of
#: them; idle connections cost nothing.
_CROWD: Final = 300
#: Characters: servers end it at 1 MiB.
_LONGEST: Final = 1 << 20


@dataclass(slots=True)
class Fetched:
    """What came of it; ``missing`` by ``status`` and ``variables``."""

    status: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    missing: dict[str, Missing] = field(default_factory=dict)


def left_out(reason: str, words: str) -> Fetched:
    """Nothing was asked."""
    return Fetched(missing=dict.fromkeys(("status", "variables"), Missing(reason, words)))


class Fetcher:
    """``Sources.also`` of a gathering: keeps what was told last.

    With a ``target``, InnoDB's variables are read from its memory where SQL does not tell any.
    """

    def __init__(self, target: Target | None = None) -> None:
        self._target = target
        self.fetched = left_out("unsupported", "SQL was left out, or the server ended before it was asked")

    def __call__(self, connect: Connect, waiting: int) -> None:
        """Ask."""
        self.fetched = fetch(connect, waiting)
        if self._target is not None and not self.fetched.variables:
            with suppress(InnoscopeError):
                _from_memory(self._target, self.fetched)


def _from_memory(target: Target, fetched: Fetched) -> None:
    """In memory switches are 0 and 1, and sets are numbers."""
    found = MemoryReader(target).variables()
    if found:
        fetched.variables = redaction.variables({name: str(value) for name, value in found.items()})
        why = fetched.missing["variables"]
        fetched.missing["variables"] = replace(why, words=f"InnoDB's only, from memory: {why.words}")


def fetch(connect: Connect, waiting: int) -> Fetched:
    """Ask; ``waiting`` is how many threads wait for row locks. ``connect`` takes seconds."""
    try:
        connection = connect(_TIMEOUT_S)
    except (SqlFailed, BadFile) as error:
        why = explain(error)
        return left_out(why.reason, why.words)
    fetched = Fetched()
    try:
        _ask(connection, waiting, fetched)
    finally:
        connection.abandon()  # no farewell, which a stalled server may not read
    return fetched


def _ask(connection: Connection, waiting: int, fetched: Fetched) -> None:
    for name, part in (("variables", _variables), ("status", _status)):
        if name == "status" and waiting > _CROWD:
            words = f"not asked: it holds up all row locks, and {waiting:,} threads wait for one"
            fetched.missing[name] = Missing("unsupported", words)
            continue
        try:
            part(connection, fetched)
        except InnoscopeError as error:
            why = explain(error)
            fetched.missing[name] = Missing(why.reason, why.words, error.remedy)
            if why.reason in ("gone", "timeout"):
                fetched.missing.setdefault("status", fetched.missing[name])
                break


def _variables(connection: Connection, fetched: Fetched) -> None:
    rows = sql.rows(connection, "SHOW GLOBAL VARIABLES")
    fetched.variables = redaction.variables({_text(name): _text(value) for name, value in rows})


def _status(connection: Connection, fetched: Fetched) -> None:
    rows = sql.rows(connection, "SHOW ENGINE INNODB STATUS")
    text = _text(rows[0][-1]) if rows else ""
    fetched.status = redaction.status(text)[:_LONGEST]


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
