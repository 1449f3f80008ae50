"""Make another process take a server's pid after a change was planned.

This script must run in a separate pid namespace. Argument: a directory for a ``mysqld``. Print as JSON: both
pids, the results of change and undo, and the number of entries in the journal.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.toggles import catalog, engine
from innoscope.toggles.journal import Journal
from innoscope.toggles.journal_format import JournalEntry, ServerId
from innoscope.toggles.model import ChangePlan, ChangeRefused, ChangeStep
from innoscope.toggles.paths import boot_id
from safety.pretender import Pretender
from safety.reused_pid_main import of_the_same_pid

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.target.model import Target

_STEP = ChangeStep("max_connections", 100, 200, 4096, 8, "unsigned", "nowhere")


def _result(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except ChangeRefused as refused:
        return f"{refused.what}, remedy: {refused.remedy}"
    return "done"


def _entry(target: Target) -> JournalEntry:
    return JournalEntry(
        "0a1b2c3d", time.time(), "test", None, "max_connections", "200", "memory",
        ServerId.of(target, boot_id()), (_STEP,),
    )  # fmt: skip


def main() -> None:
    """Journal a change of the first process, then try to make and to undo a change in the second process."""
    toggle = catalog.load()["max_connections"]
    backend = next(backend for backend in toggle.generations[0].backends if backend.kind == "memory")
    journal, account = Journal(), LoginOptions()
    with Pretender(Path(sys.argv[1])) as first:
        target = find_one(first.pid)
        entry = _entry(target)
        journal.intend(entry)
        journal.conclude(entry.id, "done")
        first.kill()
        second = of_the_same_pid(first)
        plan = ChangePlan(toggle, "200", backend, (_STEP,), ())
        results = {
            "pids": [first.pid, second.pid],
            "apply": _result(lambda: engine.apply(target, plan, who="test", account=account)),
            "undo": _result(lambda: engine.undo(None, entry.id, account=account, who="test")),
            "entries": len(journal.entries()),
        }
        second.kill()
        second.wait()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
