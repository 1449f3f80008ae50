"""The identity of one server process, and what it says of its threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One running mysqld or mariadbd.

    ``start_time`` is field 22 of /proc/PID/stat (clock ticks since boot): with the pid it names the process
    for good. Paths are as the server sees them; ``root`` prefixes them to what we see (``/proc/PID/root``).
    """

    pid: int
    start_time: int
    flavour: str  # mysql or mariadb
    version: tuple[int, ...]  # () when it could not be learnt
    version_text: str
    version_from: str  # memory, binary, sql or unknown
    executable: str
    deleted: bool  # an upgrade replaced the file under the running server
    build_id: str | None
    socket: str | None
    port: int | None
    datadir: str | None
    threads: int
    root: str  # "/" or the chroot as seen from here
    container: str | None  # short container id or the namespaces that differ from ours ("mnt,pid,user")
    symbols: str  # symtab, debug-file, symbol-pack, debugdata, dynsym or none: where names will come from
    #: A person named this very process: only then is SQL used if it runs in a container (choice.py).
    chosen: bool = field(default=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Return what programs are told of it: how it was found is no part of its identity."""
        told = asdict(self)
        del told["chosen"]
        return told

    def inside(self, path: str) -> str:
        """A path of the server's own file system, as we can open it from here."""
        return f"/proc/{self.pid}/root{path}"


@dataclass(frozen=True, slots=True)
class Query:
    """What the server says of a thread over SQL. ``digest_text`` has no literals in it."""

    connection_id: int
    user: str | None
    host: str | None
    db: str | None
    command: str | None
    state: str | None
    seconds: int | None
    digest_text: str | None
