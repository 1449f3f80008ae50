"""Start processes that have a server's name but are not servers, as any user and with any options."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: A uid without an account.
UID = 54321
_SOURCE = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"


class Strangers:
    """Context manager: start processes with a server's name, and end them at the end of the block.

    ``folder`` must be accessible to all users.
    """

    def __init__(self, folder: Path) -> None:
        self.executable = folder / "mysqld"
        self._keeper = Keeper()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Strangers:
        source = self.executable.with_suffix(".c")
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-static", "-O1", "-o", str(self.executable), str(source)], check=True)
        self.executable.chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._running):
            self.end(pid)
        self._keeper.close()

    def start(self, *options: bytes, uid: int = UID, cwd: Path | None = None) -> int:
        """Start a process and return its pid."""
        arguments: Sequence[bytes] = (os.fsencode(self.executable), *options)
        process = subprocess.Popen(
            arguments, user=uid, group=uid, extra_groups=[], cwd=cwd or self.executable.parent
        )
        return self._watch(process)

    def start_in(self, folder: Path, *options: bytes, uid: int = UID) -> int:
        """Start a process that enters ``folder`` by itself, and return its pid when it has done so.

        ``Popen`` would block all threads of this process, which may serve the folder's file system.
        """
        enter = ("sh", "-c", 'cd "$0" && echo && exec "$@"', str(folder), str(self.executable))
        process = subprocess.Popen(
            (*enter, *options), user=uid, group=uid, extra_groups=[], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.read(1), "cannot enter the folder"
        return self._watch(process)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        self._keeper.watch(process.pid)
        self._running[process.pid] = process
        return process.pid

    def end(self, pid: int) -> None:
        """Kill the process and reap it."""
        self._keeper.end(self._running.pop(pid))
