"""The states and tracers of a process's threads, sampled without pause from a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from servers import Keeper

_SCRIPT = Path(__file__).with_name("watcher_main.py")


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen. ``stopped``: samples of threads in state T or t; ``traced``: with a tracer."""

    main_samples: int
    rounds: int  # over all threads
    thread_samples: int
    stopped: int
    traced: int
    seconds: float


class Watcher:
    """A context manager; ``seen`` is there after its end."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.seen: Watched | None = None

    def __enter__(self) -> Watcher:
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(self._pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._keeper.watch(self._process.pid)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self._keeper.close()
            raise RuntimeError("the watcher did not start")
        return self

    def __exit__(self, *_: object) -> None:
        output, _errors = self._process.communicate(timeout=60)
        self._keeper.close()
        self.seen = Watched(**json.loads(output))
