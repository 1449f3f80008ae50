"""Check that a server is running, responds and is not traced."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_ANSWER_S = 15  # generous, because the machine may be busy; a stopped server would never respond


def statuses(pid: int) -> Iterator[tuple[str, str, int]]:
    """Yield (thread, state letter, tracer) of each thread."""
    for folder in Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        yield folder.name, fields["State"][0], int(fields["TracerPid"])


def held_threads(pid: int) -> list[tuple[str, str, int]]:
    """Return the threads that are stopped or traced."""
    return [found for found in statuses(pid) if found[1] in "Tt" or found[2] != 0]


def assert_well(server: Server) -> None:
    """Check that the server is running, responds and is not traced. Do not wait: the tool has been reaped."""
    assert server.running
    assert held_threads(server.pid) == []
    patience = {"connect_timeout": _ANSWER_S, "read_timeout": _ANSWER_S}
    with closing(server.connect(**patience)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        assert cursor.fetchone() == (42,)
