"""Run ``innoscope trace`` to its end, or run ``trace`` or ``latency`` in the background."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any, Self

from safety.command import DEADLINE_S, INNOSCOPE, innoscope
from safety.leftovers import probed
from safety.progress import Progress
from servers import Keeper
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers import Server


def trace(server: Server, *arguments: object) -> dict[str, Any]:
    """Run a trace to its end and return its JSON document."""
    result = innoscope("trace", "--pid", server.pid, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


class Tracing:
    """A trace, or another command with probes, in the background.

    The probes are attached while the block runs.
    """

    def __init__(
        self, server: Server, *arguments: object, under: Sequence[str] = (), command: str = "trace"
    ) -> None:
        self._server = server
        self._command = [*under, INNOSCOPE, command, "--pid", str(server.pid), *map(str, arguments)]
        self._keeper = Keeper()
        self.progress = Progress()
        self.out = self.err = ""

    def __enter__(self) -> Self:
        self.process = self.progress.start(self._command)
        self._keeper.watch(self.process.pid)
        until(self._is_probing, within_s=DEADLINE_S, every_s=0.02)
        return self

    def _is_probing(self) -> bool:
        assert self.process.poll() is None, (self.finish(), self.out, self.err)
        return bool(probed(self._server.pid))

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.finish()

    def finish(self) -> int:
        """Wait for the trace to end; return its exit code. Its output is then in ``out`` and ``err``."""
        if not self.process.stdout or self.process.stdout.closed:
            return self.process.returncode
        self.out, _ = self.process.communicate(timeout=DEADLINE_S)
        self.err = self.progress.finish()
        self._keeper.close()
        return self.process.returncode

    def document(self) -> dict[str, Any]:
        """Return the JSON document of a trace with ``--json``."""
        assert self.process.returncode == 0, self.err
        return dict(json.loads(self.out))
