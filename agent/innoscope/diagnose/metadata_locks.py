"""Find the holders and waiters of metadata locks in rows of ``performance_schema.metadata_locks``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Lock types that are compatible with themselves, in the namespaces GLOBAL, COMMIT, BACKUP LOCK and SCHEMA
#: (MDL_lock::m_scoped_lock_strategy in sql/mdl.cc of MySQL 5.7.22). A statement that writes holds GLOBAL
#: INTENTION_EXCLUSIVE; FLUSH TABLES WITH READ LOCK holds GLOBAL SHARED.
_SELF_COMPATIBLE: Final = frozenset({"INTENTION_EXCLUSIVE", "SHARED"})
#: Lock types of statements and commits in the namespace BACKUP, which are compatible with each other
#: (MDL_backup_lock::m_granted_incompatible in sql/mdl.cc of MariaDB).
_OF_STATEMENTS: Final = frozenset(
    {"BACKUP_DML", "BACKUP_TRANS_DML", "BACKUP_SYS_DML", "BACKUP_DDL", "BACKUP_ALTER_COPY", "BACKUP_COMMIT"}
)
#: Names of the namespaces that have a single lock.
_NAMES: Final = {
    "GLOBAL": "the global read lock",
    "COMMIT": "the commit lock",
    "BACKUP LOCK": "the backup lock",
    "BACKUP": "the backup lock",
    "ACL CACHE": "the lock of the privilege cache",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A metadata lock with its holder, its type, and the connections waiting for it, even indirectly."""

    connection: int
    type: str
    lock: str
    waiters: tuple[int, ...]

    @property
    def words(self) -> str:
        """Return the lock's type and name."""
        return f"{self.type} on {self.lock}"


def held_locks(rows: Iterable[Mapping[str, str]]) -> list[Held]:
    """Return granted locks that connections are waiting for, unless the holder is also waiting for it."""
    by_lock: dict[tuple[str, str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        if row["connection"].isdigit():
            by_lock[row["namespace"], row["schema"], row["object"]].append(row)
    return [held for key, requests in by_lock.items() for held in _held(_name(*key), requests)]


def _held(lock: str, requests: Iterable[Mapping[str, str]]) -> Iterable[Held]:
    pending = [row for row in requests if row["status"] == "PENDING"]
    waiters = dict.fromkeys(int(row["connection"]) for row in pending)
    for row in requests:
        connection = int(row["connection"])
        blocks = any(_conflict(row["type"], one["type"]) for one in pending)
        if row["status"] == "GRANTED" and connection not in waiters and blocks:
            yield Held(connection, row["type"], lock, tuple(waiters))


def _conflict(granted: str, requested: str) -> bool:
    """Return whether a request may have to wait for a granted lock.

    A lock on an object is assumed to conflict with every request: a reader that waits is queued behind an
    exclusive request, which waits for all holders.
    """
    if {granted, requested} <= _OF_STATEMENTS:
        return False
    return granted != requested or granted not in _SELF_COMPATIBLE


def _name(namespace: str, schema: str, name: str) -> str:
    if namespace in _NAMES:
        return _NAMES[namespace]
    full = ".".join(part for part in (schema, name) if part)
    return full if namespace == "TABLE" else f"{namespace.lower()} {full}".strip()
