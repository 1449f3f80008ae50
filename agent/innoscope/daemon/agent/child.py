"""A sensor of our own, for an agent that is run by hand as root: it lives and dies with us."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.daemon.protocol.client import SensorClient, SensorDown

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds for it to begin to listen.
_STARTS: Final = 15.0
_POLL: Final = 0.05
_ENDS: Final = 0.6

#: Ends the sensor when its standard input does, whatever ends us: by then we may be another user, who may not
#: send root's processes a signal; nor would the kernel do it for us (PDEATHSIG asks the same question).
_GUARD: Final = """\
exec 3<&0 </dev/null
"$@" 3<&- &
sensor=$!
{ read -r _ <&3; kill -TERM "$sensor"; } &
guard=$!
exec 3<&-
wait "$sensor"
code=$?
kill "$guard" 2>/dev/null
exit "$code"
"""


def answers(path: str) -> bool:
    """Whether a sensor is there already."""
    try:
        SensorClient(path).hello()
    except SensorDown:
        return False
    return True


class OwnSensor:
    """The process; ends when we end it, or when we are gone."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self._path = path
        program = [sys.executable, "-P", "-m", "innoscope.cli.main"]
        command = [*program, "sensor", "--sensor-socket", path, *arguments]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us, who then end it
        )

    def wait_ready(self) -> None:
        """Return once it answers. Raises InnoscopeError when it ends or takes too long."""
        deadline = time.monotonic() + _STARTS
        while not answers(self._path):
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                self.end()
                what = f"ended with {code}" if code is not None else f"did not answer within {_STARTS:.0f} s"
                raise InnoscopeError(f"our own sensor {what}", remedy="try it alone: innoscope sensor")
            time.sleep(_POLL)

    def end(self) -> None:
        """Let it end, and wait a little for that."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDS)
