"""Describe a lock that threads are waiting for, and its owner."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock and one of its owners, in the snapshot in which the most threads waited for it.

    ``kind`` (``mutex``, ``rwlock``, ``metadata lock``, …), ``name`` and ``address`` describe the lock.
    Threads are identified by their id in the server's pid namespace. ``owner`` is None if unknown; ``stack``
    and ``owner_wait`` are the owner's stack and wait class. ``wait`` is the waiters' wait class and
    ``waiting`` their number; ``waiters`` may list fewer. ``snapshots`` is the number of snapshots in which
    threads waited, ``owners`` the number of distinct owners in them. ``key`` in a field's metadata is
    its JSON key.
    """

    kind: str
    name: str
    address: int
    owner: int | None
    waiters: tuple[int, ...]
    waiting: int
    wait: str = ""
    snapshots: int = field(default=1, metadata={"key": "looks"})
    owners: int = 0
    owner_wait: str = ""
    stack: tuple[str, ...] = ()
