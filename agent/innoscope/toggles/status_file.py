"""Write the status file for the agent: a small, world-readable file, replaced after each change."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.common.toggle_status import VERSION, status_path
from innoscope.toggles.journal_format import RESCUE
from innoscope.toggles.paths import lives

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.toggles.journal import Journal
    from innoscope.toggles.journal_format import JournalEntry


def publish(journal: Journal, path: Path | None = None) -> None:
    """Write the status file from the journal. Ignore errors, because only metrics depend on this file."""
    with suppress(OSError, BadFile):
        write(path or status_path(), document(journal.entries()))


def document(entries: Iterable[JournalEntry]) -> dict[str, Any]:
    """Return the file's content: for each running server, the changes in force and the number of changes.

    Only the last change to each toggle is listed. A change without a result is ``unfinished``.
    """
    by_life: dict[tuple[int, int, str], list[JournalEntry]] = {}
    for entry in entries:
        if entry.toggle == RESCUE:
            continue
        by_life.setdefault(entry.server.life, []).append(entry)
    servers = [_server(of_one) for life, of_one in by_life.items() if lives(*life)]
    return {"version": VERSION, "written_at": time.time(), "servers": servers}


def _server(entries: list[JournalEntry]) -> dict[str, Any]:
    last = {entry.toggle: entry for entry in entries if entry.may_be_in_force}
    counted = Counter(_counts_as(entry) for entry in entries)
    server = entries[-1].server
    return {
        "pid": server.pid,
        "start_time": server.start_time,
        "socket": server.socket,
        "changes": {result: counted[result] for result in ("done", "undone", "failed")},
        "toggles": [
            {
                "id": entry.id, "toggle": entry.toggle, "value": entry.value, "way": entry.backend,
                "since": entry.at, "until": entry.until, "who": entry.who,
                "unfinished": entry.outcome == "intended",
            }
            for entry in last.values()
        ],
    }  # fmt: skip


def _counts_as(entry: JournalEntry) -> str | None:
    """Return the name of the counter that an entry increments, or None."""
    if entry.outcome == "failed":
        return "failed"
    if entry.undoes is not None:
        return "undone" if entry.outcome == "done" else None
    return "done" if entry.outcome in ("done", "undone") else None


def write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file atomically: a reader sees either the old or the new contents.

    Raise OSError if the file cannot be written.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(sanitize.dumps(content, separators=(",", ":")))
            os.fchmod(file.fileno(), 0o644)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
