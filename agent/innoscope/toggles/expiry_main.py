"""Wait until a change expires and undo it: the helper process of ``innoscope toggle set --for``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.credentials import LoginOptions
from innoscope.target.proc import ProcFs
from innoscope.toggles import lock
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.journal import Journal
from innoscope.toggles.paths import lives
from innoscope.toggles.undo import Overtaken, undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.toggles.journal_format import JournalEntry

_POLL_S: Final = 0.5
#: Seconds between attempts to undo. An attempt fails, for example, if the server is stopped or if another
#: change is in progress.
_RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_NOTES_MOST: Final = 20


class PendingUndo:
    """The pending undo of one change. ``life`` is the server's pid, start time and boot id.

    ``maker`` is the pid of the process that makes the change and writes the journal entry.
    """

    def __init__(self, ident: str, deps: Dependencies, life: tuple[int, int, str], maker: int) -> None:
        self._ident = ident
        self._deps = deps
        self._journal = deps.journal
        self._life = life
        self._maker = maker
        self._maker_began = _start_time(maker)
        self._stamp: tuple[int, int] | None = None
        self._entry: JournalEntry | None = None
        self._noted: set[str] = set()

    def moot(self) -> bool:
        """Return whether nothing is left to undo. The journal is read only if it has changed."""
        if not lives(*self._life):
            return True
        maker_ended = _start_time(self._maker) != self._maker_began
        readable = self._read_journal()
        if self._entry is None:
            return readable and maker_ended
        return not self._entry.may_be_in_force

    def wait(self, deadline: float) -> None:
        """Wait until the deadline (CLOCK_BOOTTIME, seconds) or until nothing is left to undo."""
        while (rest := deadline - _now()) > 0 and not self.moot():
            time.sleep(min(_POLL_S, rest))

    def undo(self, account: LoginOptions) -> None:
        """Undo the change. Retry until this succeeds, nothing is left to undo, or undo is impossible.

        Each new reason for a failure is noted in the journal.
        """
        pauses = chain(_RETRY_S, repeat(_RETRY_S[-1]))
        while not self.moot():
            try:
                if self._entry is not None:
                    who, why = "innoscope", "expired"
                    undo(None, self._ident, account=account, who=who, why=why, deps=self._deps)
                    return
            except lock.AlreadyLocked:  # locked by another change, or by this one if it is still in progress
                pass
            except InnoscopeError as error:
                self._note_failure(error.what)
                if isinstance(error, Overtaken):
                    return
            time.sleep(next(pauses))

    def _read_journal(self) -> bool:
        """Read the journal if it has changed; return whether it could be read."""
        stamp = self._journal.stamp()
        if stamp == self._stamp and stamp is not None:
            return True
        try:
            self._entry = self._journal.find(self._ident)
        except BadFile:  # the journal may be repaired later: until then, use the last known entry
            return False
        self._stamp = stamp
        return True

    def _note_failure(self, text: str) -> None:
        if text in self._noted or len(self._noted) >= _NOTES_MOST:
            return
        self._noted.add(text)
        try:
            self._journal.note(self._ident, f"not undone on expiry: {text}")
        except (BadFile, CannotWrite):
            return


def _start_time(pid: int) -> int | None:
    try:
        stat = ProcFs().stat(pid)
    except ProcessLookupError:
        return None
    return None if stat.state in "ZX" else stat.start_time


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _detach() -> None:
    """Become a daemon: a child of init without a terminal. The parent process exits here."""
    if os.fork():
        sys.exit(0)
    os.write(1, f"waiting {os.getpid()}\n".encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Wait until the change expires, and undo it. Without ``--foreground``, become a daemon first."""
    parser = argparse.ArgumentParser(prog="innoscope.toggles.expiry_main", description=__doc__)
    parser.add_argument("ident")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--server", required=True, help="pid, start time, boot id")
    parser.add_argument("--maker", type=int, required=True)
    parser.add_argument("--defaults-file")
    parser.add_argument("--user")
    parser.add_argument("--foreground", action="store_true")
    options = parser.parse_args(arguments)
    deadline = _now() + options.seconds
    if not options.foreground:
        _detach()
    pid, start_time, boot = options.server.split()
    deps = Dependencies(journal=Journal(options.state))
    watch = PendingUndo(options.ident, deps, (int(pid), int(start_time), boot), options.maker)
    watch.wait(deadline)
    watch.undo(LoginOptions(options.defaults_file, options.user))
    return 0


if __name__ == "__main__":
    sys.exit(main())
