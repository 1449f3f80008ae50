"""Whether a server was left alone: running, untraced, answering."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_ANSWER_S = 15  # generous, for a machine that is busy with other things: a stopped server never answers


def statuses(pid: int) -> Iterator[tuple[str, str, int]]:
    """(thread, state letter, tracer) of each thread."""
    for folder in Path(f"/proc/{pid}/task").iterdir():
        try:
            text = (folder / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        yield folder.name, fields["State"][0], int(fields["TracerPid"])


def assert_well(server: Server) -> None:
    """At once: whoever looked has been reaped."""
    assert server.running
    assert [found for found in statuses(server.pid) if found[1] in "Tt" or found[2] != 0] == []
    patience = {"connect_timeout": _ANSWER_S, "read_timeout": _ANSWER_S}
    with closing(server.connect(**patience)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        assert cursor.fetchone() == (42,)
