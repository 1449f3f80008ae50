"""Find the holders and waiters of metadata locks in rows of ``performance_schema.metadata_locks``."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_WRITES: Final = frozenset({"SHARED_WRITE", "SHARED_WRITE_LOW_PRIO"})
#: For each lock type, the types that it conflicts with besides EXCLUSIVE (m_granted_incompatible of
#: MDL_lock::m_scoped_lock_strategy and m_object_lock_strategy, sql/mdl.cc in MySQL 8.0; MDL_object_lock in
#: MariaDB). INTENTION_EXCLUSIVE exists only in namespaces such as GLOBAL and SCHEMA: a statement that writes
#: holds GLOBAL INTENTION_EXCLUSIVE; FLUSH TABLES WITH READ LOCK holds GLOBAL SHARED.
_CONFLICTS: Final[Mapping[str, frozenset[str]]] = {
    "INTENTION_EXCLUSIVE": frozenset({"SHARED"}),
    "SHARED": frozenset({"INTENTION_EXCLUSIVE"}),
    "SHARED_HIGH_PRIO": frozenset(),
    "SHARED_READ": frozenset({"SHARED_NO_READ_WRITE"}),
    **dict.fromkeys(_WRITES, frozenset({"SHARED_READ_ONLY", "SHARED_NO_WRITE", "SHARED_NO_READ_WRITE"})),
    "SHARED_UPGRADABLE": frozenset({"SHARED_UPGRADABLE", "SHARED_NO_WRITE", "SHARED_NO_READ_WRITE"}),
    "SHARED_READ_ONLY": _WRITES | {"SHARED_NO_READ_WRITE"},
    "SHARED_NO_WRITE": _WRITES | {"SHARED_UPGRADABLE", "SHARED_NO_WRITE", "SHARED_NO_READ_WRITE"},
    "SHARED_NO_READ_WRITE": frozenset(
        {"SHARED_READ", "SHARED_UPGRADABLE", "SHARED_READ_ONLY", "SHARED_NO_WRITE", "SHARED_NO_READ_WRITE"}
    )
    | _WRITES,
}
#: Lock types of statements and commits in the namespace BACKUP, which are compatible with each other
#: (MDL_backup_lock::m_granted_incompatible, sql/mdl.cc in MariaDB).
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
    """Return granted locks that connections are waiting for, unless the holder itself waits for the lock.

    A holder that conflicts with one request is reported with all waiters, because requests queue: a reader
    that waits is queued behind an exclusive request, which waits for all holders.
    """
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
    """Return whether the request has to wait for the granted lock. Unlisted types conflict with all types."""
    if {granted, requested} <= _OF_STATEMENTS:
        return False
    if granted not in _CONFLICTS or requested not in _CONFLICTS:
        return True
    return requested in _CONFLICTS[granted]


def _name(namespace: str, schema: str, name: str) -> str:
    if namespace in _NAMES:
        return _NAMES[namespace]
    full = ".".join(part for part in (schema, name) if part)
    return full if namespace == "TABLE" else f"{namespace.lower()} {full}".strip()
