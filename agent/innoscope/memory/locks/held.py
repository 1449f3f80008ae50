"""A lock that threads wait for, and its owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that threads waited for and one that held it, at the look at which most waited.

    Threads are ids as the server knows them; ``owner`` is None where nothing tells. ``kind`` (``mutex``,
    ``rwlock``, ``metadata lock``, …), ``name`` and ``address`` are the lock's, ``wait`` its waiters' class,
    ``waiting`` how many they were (``waiters`` may be fewer). ``looks`` is how many looks found somebody
    waiting, ``owners`` how many held it at those; ``stack`` and ``owner_wait`` are the owner's.
    """

    kind: str
    name: str
    address: int
    owner: int | None
    waiters: tuple[int, ...]
    waiting: int
    wait: str = ""
    looks: int = 1
    owners: int = 0
    owner_wait: str = ""
    stack: tuple[str, ...] = ()
