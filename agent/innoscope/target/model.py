"""Define the identity of a server process, and the data about the statements of its threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """One running mysqld or mariadbd.

    ``start_time`` is field 22 of /proc/PID/stat (clock ticks since boot). Together with the pid it identifies
    the process uniquely. Paths are in the server's file system; ``root`` is the root directory of that file
    system as this process sees it.
    """

    pid: int
    start_time: int
    flavour: str  # mysql or mariadb
    version: tuple[int, ...]  # () if unknown
    version_text: str
    version_from: str  # memory, binary or unknown
    executable: str
    deleted: bool  # an upgrade replaced the file under the running server
    build_id: str | None
    socket: str | None
    port: int | None
    datadir: str | None
    threads: int
    root: str  # "/", or the chroot as this process sees it
    container: str | None  # short container id, or the namespaces that differ from ours ("mnt,pid,user")
    symbols: str  # source of names: symtab, debug-file, symbol-pack, debugdata, dynsym or none
    #: True if the user named this process. If False, SQL is not used for a server in a container (choice.py).
    chosen: bool = field(default=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Return the fields for JSON, without ``chosen``, which is not part of the identity."""
        fields = asdict(self)
        del fields["chosen"]
        return fields

    def inside(self, path: str) -> str:
        """Return the path by which Innoscope can open a path in the server's file system."""
        return f"/proc/{self.pid}/root{path}"


@dataclass(frozen=True, slots=True)
class Query:
    """The data about a thread's connection and statement, from SQL or from the server's memory.

    ``digest_text`` contains no literals. Only statements from memory have the last four fields: ``text``,
    which may be truncated; ``text_bytes``, its full length; ``trust``; and the digest's id (docs/digests.md).
    ``trust`` is ``exact`` if the thread did not run between the read of the statement and the copy of the
    stack. It is ``running`` if the thread ran, but executed this statement both before and after the copy.
    """

    connection_id: int
    user: str | None
    host: str | None
    db: str | None
    command: str | None
    state: str | None
    seconds: int | None
    digest_text: str | None
    text: str | None = None
    text_bytes: int | None = None
    trust: str | None = None
    digest_id: str | None = None

    @property
    def summary(self) -> str | None:
        """Return ``digest_text``, with a mark if ``trust`` is ``running``."""
        running = self.digest_text and self.trust == "running"
        return f"[running] {self.digest_text}" if running else self.digest_text
