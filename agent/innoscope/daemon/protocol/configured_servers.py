"""Match processes with the servers that the agent's or the sensor's configuration names.

An entry has a socket or a port. Any process can be started with the same options, and a container or a chroot
can use the same socket path or port as the host. Therefore an entry belongs to the process that its address
reaches.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.target import choice
from innoscope.target.discover import still_same

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

#: Seconds until an address that did not reach the server is tried again; doubled after each attempt. The
#: server that listens there counts each attempt as an aborted connection.
_RETRY_S: Final = 2.0
_MAX_RETRY_S: Final = 600.0
#: Maximum number of attempts to remember; the oldest are dropped first.
_MAX_ATTEMPTS: Final = 1024


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The name of a configured server, and its socket, or its port on this host."""

    name: str
    socket: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that an entry belongs to. ``proven`` is False if the address could not be tried."""

    target: Target
    identity: Hashable
    proven: bool


@dataclass(frozen=True, slots=True)
class _Attempt:
    reached: bool | None
    retry_s: float
    retry_at: float


class ConfiguredServers:
    """Assigns each entry to at most one process. All methods are thread-safe."""

    def __init__(self, entries: Iterable[ServerAddress], proc: ProcFs, clock: Callable[[], float]) -> None:
        self._entries = tuple(entries)
        self.names = frozenset(entry.name for entry in self._entries)
        self._proc = proc
        self._clock = clock
        self._lock = threading.Lock()  # protects _owners and _attempts
        self._owners: dict[str, _Owner] = {}  # by the name of the entry
        self._attempts: dict[tuple[str | None, int | None, int, int], _Attempt] = {}

    def try_addresses(self, target: Target) -> None:
        """Find out whether the configured addresses with the process's socket or port reach the process.

        ``choice.reaches`` decides. The pause between attempts increases. Call this before ``name_of``. It may
        block forever if the file system of a socket does not respond.
        """
        for entry in self._matching(target):
            with self._lock:
                key, now = _key(entry, target), self._clock()
                before = self._attempts.pop(key, None)
                due = not self._has_proven_owner(entry) and (before is None or now >= before.retry_at)
                if before is not None:
                    self._attempts[key] = before
            if due:
                pause = min(2 * before.retry_s, _MAX_RETRY_S) if before else _RETRY_S
                attempt = _Attempt(choice.reaches(self._proc, target, *key[:2]), pause, now + pause)
                with self._lock:
                    self._attempts[key] = attempt
                    if len(self._attempts) > _MAX_ATTEMPTS:
                        del self._attempts[next(iter(self._attempts))]

    def name_of(self, target: Target, identity: Hashable | None) -> str | None:
        """Return the name of the entry that belongs to the process; None if there is none.

        An entry belongs to the process that its address reaches, as long as that process runs. If that cannot
        be determined, for example because no process listens there, the entry belongs to the first process
        with that option and, after that process has exited, to a process with the same ``identity``: the
        same server after a restart. A process that the address reaches later takes the entry over.
        ``identity`` is a server's data directory, or a name that is bound to it.
        """
        with self._lock:
            names = (one.name for one in self._matching(target) if self._belongs(one, target, identity))
            return next(names, None)

    def is_proven(self, name: str) -> bool:
        """Return whether the entry's address reached the process that it belongs to."""
        with self._lock:
            return name in self._owners and self._owners[name].proven

    def is_final(self, target: Target) -> bool:
        """Return whether each entry that matches the process has a running owner that its address reached."""
        with self._lock:
            return all(self._has_proven_owner(entry) for entry in self._matching(target))

    def _matching(self, target: Target) -> Iterator[ServerAddress]:
        """Yield the entries with the process's socket or port."""
        for entry in self._entries:
            if _by_socket(entry, target) or (entry.port and entry.port == target.port):
                yield entry

    def _has_proven_owner(self, entry: ServerAddress) -> bool:
        owner = self._owners.get(entry.name)
        return owner is not None and owner.proven and self._runs(owner)

    def _belongs(self, entry: ServerAddress, target: Target, identity: Hashable | None) -> bool:
        owner = self._owners.get(entry.name)
        owns = owner is not None and _life(owner.target) == _life(target)
        if owner is not None and owner.proven:
            if owns:
                return True
            if self._runs(owner):
                return False
        attempt = self._attempts.get(_key(entry, target))
        if attempt is None:
            return False
        successor = owner is not None and identity is not None and owner.identity == identity
        first = owner is None or owns or (successor and not self._runs(owner))
        if attempt.reached or (attempt.reached is None and first):
            self._owners[entry.name] = _Owner(target, identity, attempt.reached is True)
            return True
        return False

    def _runs(self, owner: _Owner) -> bool:
        return still_same(owner.target, self._proc)


def _by_socket(entry: ServerAddress, target: Target) -> bool:
    return entry.socket is not None and entry.socket == target.socket


def _key(entry: ServerAddress, target: Target) -> tuple[str | None, int | None, int, int]:
    where = (entry.socket, None) if _by_socket(entry, target) else (None, entry.port)
    return *where, *_life(target)


def _life(target: Target) -> tuple[int, int]:
    return target.pid, target.start_time
