"""Read and write the journal of changes: append-only JSON lines, each flushed to disk before the next action.

A line is valid only if it ends with a newline. A full disk or a power failure can truncate the last line. If
that line announces an action, the action was not performed. The reader reports and ignores a truncated line,
and the next writer appends a marker line after it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite
from innoscope.common.folders import sync
from innoscope.toggles import journal_format as lines
from innoscope.toggles.model import ChangeRefused
from innoscope.toggles.paths import make_private, state_folder

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.toggles.journal_format import JournalEntry

_NAME: Final = "journal.jsonl"
_MOST_BYTES: Final = 64 << 20
_LINE_MOST: Final = 64 << 10
#: Seconds to wait for another writer's append, which usually takes milliseconds.
_PATIENCE_S: Final = 5.0
#: Free disk space in bytes required for a change and its undo, enough for about a hundred lines.
NEEDED_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalContents:
    """The entries of the journal. ``notes`` contains messages about ignored lines."""

    entries: tuple[JournalEntry, ...]
    notes: tuple[str, ...] = ()


class Journal:
    """The journal in a directory; by default, the host's state directory."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()
        self.path = self.folder / _NAME

    def read(self) -> JournalContents:
        """Read all entries, oldest first; empty if there is no journal.

        Raise BadFile if the journal cannot be read, is damaged or is not trusted.
        """
        try:
            content = self._content()
        except FileNotFoundError:
            return JournalContents(())
        except OSError as error:
            raise BadFile(
                f"cannot read the journal {self.path}: {error.strerror}", remedy=f"as root: ls -l {self.path}"
            ) from error
        return _fold(content, self.path)

    def entries(self) -> tuple[JournalEntry, ...]:
        """Return all entries, oldest first. Raise BadFile as ``read`` does."""
        return self.read().entries

    def entries_if_readable(self) -> tuple[JournalEntry, ...]:
        """Return all entries; empty if the journal cannot be read (``problem`` returns the reason)."""
        try:
            return self.entries()
        except BadFile:
            return ()

    def find(self, ident: str) -> JournalEntry | None:
        """Return the entry with this id, or None. Raise BadFile as ``read`` does."""
        return next((entry for entry in self.entries() if entry.id == ident), None)

    def stamp(self) -> tuple[int, int] | None:
        """Return a value that changes whenever the file changes; None if there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def intend(self, entry: JournalEntry) -> None:
        """Journal an intended change. Raise ChangeRefused if this fails: the change must not be made."""
        try:
            self._append(lines.intent_line(entry))
        except (BadFile, CannotWrite) as error:
            raise ChangeRefused(f"nothing was changed: {error.what}", remedy=error.remedy) from error

    def conclude(
        self, ident: str, outcome: str, reason: str | None = None, *, put_back: bool = False
    ) -> None:
        """Journal the result: done, failed or "not written".

        Raise BadFile or CannotWrite as ``_append`` does.
        """
        self._append(lines.result_line(ident, time.time(), outcome, reason, put_back))

    def note(self, ident: str, text: str) -> None:
        """Journal the reason why an undo has not been completed yet.

        Raise BadFile or CannotWrite as ``_append`` does.
        """
        self._append(lines.note_line(ident, time.time(), text))

    def problem(self) -> tuple[str, str] | None:
        """Return why the journal cannot be read or written, and the remedy; None if the journal is usable.

        Create the directory and an empty journal if they are missing.
        """
        try:
            make_private(self.folder)
            descriptor = self._open()
        except OSError as error:
            return f"cannot write the journal {self.path}: {error.strerror}", self._remedy(error)
        try:
            self._must_be_trusted(descriptor)
            room = os.fstatvfs(descriptor)
        except BadFile as error:
            return error.what, error.remedy or ""
        finally:
            os.close(descriptor)
        free = room.f_bavail * room.f_frsize
        if free < NEEDED_BYTES:
            return f"only {free >> 10} KiB of disk space left for {self.path}", f"df {self.folder}"
        try:
            self.read()
        except BadFile as error:
            return error.what, error.remedy or ""
        return None

    def _content(self) -> bytes:
        # With O_NONBLOCK, opening a pipe or a device does not block.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            self._must_be_trusted(descriptor)
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadFile(
                f"the journal {self.path} is larger than {_MOST_BYTES >> 20} MiB",
                remedy=f"once none of its changes is in force: mv {self.path} {self.path}.old",
            )
        return content

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        return os.open(self.path, flags, 0o600)

    def _append(self, line: bytes) -> None:
        """Append the line with one write(2), and flush it to disk.

        Raise BadFile if the journal is not trusted, or CannotWrite if the line is invalid or cannot be
        written.
        """
        try:
            lines.parse(line[:-1])
        except lines.DamagedRecord as error:  # the line would make the whole journal unreadable
            raise CannotWrite(f"cannot write to the journal: invalid entry: {error}") from error
        try:
            make_private(self.folder)
            descriptor = self._open()
            try:
                self._must_be_trusted(descriptor)
                _lock(descriptor)
                self._write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise CannotWrite(
                f"cannot write the journal {self.path}: {error.strerror}", remedy=self._remedy(error)
            ) from error

    def _write(self, descriptor: int, line: bytes) -> None:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _LINE_MOST, max(0, size - _LINE_MOST))
        line = _after(tail) + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
        if size == 0:
            sync(self.folder)

    def _must_be_trusted(self, descriptor: int) -> None:
        """Raise BadFile if other users could have written the journal, because undo acts on its contents."""
        found, folder = os.fstat(descriptor), self.folder.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadFile(f"the journal {self.path} is not a file", remedy=f"ls -l {self.path}")
        for path, one in ((self.path, found), (self.folder, folder)):
            if one.st_uid not in (0, os.geteuid()) or one.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise BadFile(
                    f"{path} is writable by other users, so the journal is not trusted",
                    remedy=f"check its contents, then: chown root {path} && chmod go-w {path}",
                )

    def _remedy(self, error: OSError) -> str:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"free some space: df {self.folder}"
        if error.errno in (errno.EACCES, errno.EPERM):
            return "run it as root: sudo innoscope toggle …"
        return f"ls -ld {self.folder}; another directory: INNOSCOPE_STATE=DIRECTORY"


def _lock(descriptor: int) -> None:
    """Lock the file exclusively until it is closed. Raise OSError if this takes too long."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _after(tail: bytes) -> bytes:
    """Return the bytes to insert before the next line: a marker if the last line is truncated, else none."""
    if not tail:
        return b""
    if not tail.endswith(b"\n"):
        return b"\n" + lines.TORN_LINE
    try:
        lines.parse(tail[:-1].rpartition(b"\n")[2])
    except lines.DamagedRecord:
        return lines.TORN_LINE
    return b""


def _fold(content: bytes, path: Path) -> JournalContents:
    """Parse a journal's content. Raise BadFile, with the line number, if a line is damaged."""
    *complete, rest = content.split(b"\n")
    fold, notes = lines.JournalReplay(), []
    for number, line in enumerate(complete, start=1):
        try:
            fold.add(lines.parse(line))
        except lines.DamagedRecord as error:
            last = number == len(complete) and not rest
            if not last and not _marked(complete[number : number + 1]):
                raise BadFile(
                    f"{path}: line {number} is damaged: {error}",
                    remedy="repair or remove that line; to find out what was changed, compare "
                    "SHOW GLOBAL VARIABLES with the server's configuration",
                ) from error
            notes.append(f"{path}: line {number} is damaged and was ignored: {error}")
    if rest:
        notes.append(f"{path}: the last line is truncated and was ignored")
    return JournalContents(fold.entries, tuple(notes))


def _marked(following: list[bytes]) -> bool:
    return following == [lines.TORN_LINE[:-1]]
