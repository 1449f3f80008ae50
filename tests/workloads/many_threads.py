"""A test process whose many threads sleep with deep stacks."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper

if TYPE_CHECKING:
    from types import TracebackType


class ManyThreads:
    """A process whose threads use ``stack_bytes`` each and wake up every ``period_ms`` (0: never)."""

    def __init__(self, folder: Path, threads: int, *, stack_bytes: int = 12_000, period_ms: int = 0) -> None:
        program = folder / "mysqld"
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run(["g++", "-O1", "-pthread", "-o", program, source], check=True)
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            [program, *map(str, (threads, stack_bytes, period_ms))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keeper.watch(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> ManyThreads:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._keeper.close()
