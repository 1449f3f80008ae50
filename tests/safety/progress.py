"""Run a command with a terminal as its standard error, and wait for what its progress line shows."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from typing import TYPE_CHECKING

from safety.command import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Sequence


class Progress:
    """The terminal of one command. It is read until the command and its child processes have exited."""

    def __init__(self) -> None:
        self._text, self._ended = "", False
        self._changed = threading.Condition()

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start the command, with a pipe as its standard output."""
        self._master, slave = pty.openpty()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave, text=True
            )
        finally:
            os.close(slave)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self._process

    def wait_for(self, pattern: str) -> None:
        """Wait until the text matches. If that takes too long or the command exits, kill it and fail."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or re.search(pattern, self._text), DEADLINE_S)
        if not re.search(pattern, self._text):
            self._process.kill()
            raise AssertionError(self._text)

    def finish(self) -> str:
        """Return the whole text, once the command has exited."""
        self._reader.join(DEADLINE_S)
        assert not self._reader.is_alive(), "a child process still has the terminal"
        os.close(self._master)
        return self._text

    def _read(self) -> None:
        while part := self._part():
            with self._changed:
                self._text += part.decode(errors="replace")
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _part(self) -> bytes:
        try:
            return os.read(self._master, 1 << 16)
        except OSError:  # EIO: the other end was closed
            return b""
