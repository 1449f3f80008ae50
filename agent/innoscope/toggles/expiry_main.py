"""Waits for the end of a change's time and undoes it: what ``innoscope toggle set --for`` leaves behind."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.credentials import Account
from innoscope.target.proc import ProcFs
from innoscope.toggles import lock
from innoscope.toggles.dependencies import Means
from innoscope.toggles.journal import Journal
from innoscope.toggles.paths import lives
from innoscope.toggles.undo import Overtaken, undo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.toggles.journal_format import Entry

_POLL_S: Final = 0.5
#: Between two attempts to undo, growing: the server may be stopped, or somebody at work on it.
_RETRY_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_NOTES_MOST: Final = 20


class Watch:
    """One change in one process (pid, start time, boot id), until nothing of it is left to undo.

    ``maker`` is the pid of who makes the change: the journal has no entry until it comes to that.
    """

    def __init__(self, ident: str, means: Means, life: tuple[int, int, str], maker: int) -> None:
        self._ident = ident
        self._means = means
        self._journal = means.journal
        self._life = life
        self._maker = maker
        self._maker_began = _start_time(maker)
        self._stamp: tuple[int, int] | None = None
        self._entry: Entry | None = None
        self._said: set[str] = set()

    def moot(self) -> bool:
        """Whether nothing is left to undo; cheap while the journal stays as it is."""
        if not lives(*self._life):
            return True
        maker_ended = _start_time(self._maker) != self._maker_began
        readable = self._look()
        if self._entry is None:
            return readable and maker_ended
        return not self._entry.may_be_in_force

    def wait(self, deadline: float) -> None:
        """Until the deadline (CLOCK_BOOTTIME, seconds) or until it is moot."""
        while (rest := deadline - _now()) > 0 and not self.moot():
            time.sleep(min(_POLL_S, rest))

    def undo(self, account: Account) -> None:
        """Try until it is done or moot. Each new reason why not goes to the journal."""
        pauses = chain(_RETRY_S, repeat(_RETRY_S[-1]))
        while not self.moot():
            try:
                if self._entry is not None:
                    who, why = "innoscope", "the end of its time"
                    undo(None, self._ident, account=account, who=who, why=why, means=self._means)
                    return
            except lock.Held:  # also by whoever makes this very change
                pass
            except InnoscopeError as error:
                self._say(error.what)
                if isinstance(error, Overtaken):
                    return
            time.sleep(next(pauses))

    def _look(self) -> bool:
        """Read the journal if it is another than before; whether it could be read."""
        stamp = self._journal.stamp()
        if stamp == self._stamp and stamp is not None:
            return True
        try:
            self._entry = self._journal.find(self._ident)
        except BadFile:  # it may be mended; the entry is as it was
            return False
        self._stamp = stamp
        return True

    def _say(self, text: str) -> None:
        if text in self._said or len(self._said) >= _NOTES_MOST:
            return
        self._said.add(text)
        try:
            self._journal.note(self._ident, f"not undone at the end of its time: {text}")
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
    """Go on as a process of our own: init's child, without a terminal. The parent ends here."""
    if os.fork():
        sys.exit(0)
    os.write(1, f"waiting {os.getpid()}\n".encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Wait, undo, end. Without ``--foreground`` it detaches as soon as it is at work."""
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
    means = Means(journal=Journal(options.state))
    watch = Watch(options.ident, means, (int(pid), int(start_time), boot), options.maker)
    watch.wait(deadline)
    watch.undo(Account(options.defaults_file, options.user))
    return 0


if __name__ == "__main__":
    sys.exit(main())
