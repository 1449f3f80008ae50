"""Rescues in the journal of changes, as far as it takes them: none waits for a disk, or fails with it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from innoscope.errors import InnoscopeError
from innoscope.toggles.entries import RESCUE, Entry, ServerId, fresh_id, printable
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import Step
from innoscope.toggles.places import boot_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.target.model import Target

#: Seconds that a rescue waits for the journal before it begins, and after it is over.
_BEFORE_S, _AFTER_S = 0.1, 2.0
_WAY: Final = "signal"


class RescueLog:
    """Takes what ``unstick.rescue`` tells (unstick.Record) of one server; never raises.

    Lines are written by a thread of their own, because a disk may hang. ``problem`` is why the journal does
    not have the last rescue, with the remedy; None when it has it.
    """

    def __init__(self, target: Target, who: str, journal: Journal | None = None) -> None:
        self._target = target
        self._who = who
        self._journal = journal or Journal()
        self._entry: str | None = None
        self._last: threading.Thread | None = None
        self.problem: tuple[str, str | None] | None = None

    def __call__(self, told: Mapping[str, Any]) -> None:
        """Write one record; ``told["outcome"]`` is intended, done or failed."""
        thread = threading.Thread(target=self._write, args=(told, self._last), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the host has no room for one more thread
            self.problem = f"nothing could be written to {self._journal.path}: {error}", None
            return
        self._last = thread
        thread.join(_BEFORE_S if told["outcome"] == "intended" else _AFTER_S)
        if thread.is_alive():
            self.problem = (
                f"{self._journal.path} takes no line for the moment, as when its disk hangs",
                f"whether it has it by now: innoscope toggle history; its disk: df {self._journal.folder}",
            )

    def _write(self, told: Mapping[str, Any], before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        try:
            if told["outcome"] == "intended":
                self._entry = None
                self._entry = self._intend(told)
            elif self._entry is None:
                return  # the problem of the intent stands
            else:
                self._journal.conclude(self._entry, told["outcome"], _reason(told))
        except InnoscopeError as error:
            cause = error.__cause__  # intend() says that nothing was changed, for its cause
            told_by = cause if isinstance(cause, InnoscopeError) else error
            self.problem = told_by.what, told_by.remedy
        except OSError as error:
            self.problem = f"{self._journal.path}: {error}", None
        else:
            self.problem = None

    def _intend(self, told: Mapping[str, Any]) -> str:
        entry = Entry(
            id=fresh_id(self._journal.entries()), at=told["at"], who=printable(self._who), why=None,
            toggle=RESCUE, value="", way=_WAY, server=ServerId.of(self._target, boot_id()),
            steps=(Step(printable(_found(told["found"])), None, None),),
        )  # fmt: skip
        self._journal.intend(entry)
        return entry.id


def _found(found: Mapping[str, Any]) -> str:
    """``103 of 125 threads stopped, 22 held by gdb (pid 12) of root (alice)``."""
    parts = []
    if found["stopped"]:
        parts.append(f"{found['stopped']} stopped by a signal")
    if found["traced"]:
        parts.append(f"{found['traced']} held")
    tracers = [f"{one['name']} (pid {one['pid']}) of {one['owner']}" for one in found["tracers"]]
    by = f" by {', '.join(tracers)}" if tracers else ""
    return f"of {found['threads']} threads {', '.join(parts) or 'none still'}{by}"


def _reason(told: Mapping[str, Any]) -> str:
    """``SIGTERM to gdb (pid 12), SIGCONT to the server: well after 0.05 s``."""
    steps = ", ".join(told["steps"]) or "nothing sent"
    if told["outcome"] == "failed":
        return f"{steps}: {told['error']}"
    return f"{steps}: well after {told['seconds']:.2f} s"
