"""Run ``sleep`` under the name mysqld, for tests that do not need a real server."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Sequence

_SLEEP = "/usr/bin/sleep"
_BOUND_S = 600
_START_S = 10


class Pretender:
    """A process that maps the libraries in ``preload``. Its executable is created in ``folder``."""

    def __init__(self, folder: Path, *, preload: Sequence[Path] = ()) -> None:
        self.executable = folder / "mysqld"
        self._preload = ":".join(map(str, preload))
        self._keeper = Keeper()

    def __enter__(self) -> Pretender:
        if not self.executable.exists():
            shutil.copy2(_SLEEP, self.executable)
        self._process = subprocess.Popen(
            [self.executable, str(_BOUND_S)],
            stdin=subprocess.DEVNULL,
            env={"LD_PRELOAD": self._preload} if self._preload else {},
        )
        self._keeper.watch(self.pid)
        deadline = time.monotonic() + _START_S
        while "nanosleep" not in Path(f"/proc/{self.pid}/wchan").read_text():  # until the loader has finished
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._keeper.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL and reap the process. Later calls do nothing."""
        self._process.kill()
        self._process.wait()
