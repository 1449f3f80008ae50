"""Run a sensor as a child process of an agent that was started manually as root.

The sensor exits when the agent exits.
"""

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

#: Timeout for a new sensor to accept connections, in seconds.
_START_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.05
_END_TIMEOUT_S: Final = 0.6

#: Shell script that runs the sensor, and terminates it when standard input is closed. The kernel closes the
#: agent's end of the pipe even if the agent is killed. Signals (kill, PDEATHSIG) do not work, because the
#: agent has no permission to signal the sensor once it has switched to an unprivileged user.
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
    """Return whether a sensor with our protocol version answers on this socket."""
    try:
        SensorClient(path).hello()
    except SensorDown:
        return False
    return True


class OwnSensor:
    """A sensor that runs as a child process, until ``end`` is called or the agent exits."""

    def __init__(self, path: str, arguments: Sequence[str] = ()) -> None:
        self._path = path
        program = [sys.executable, "-P", "-m", "innoscope.cli.main"]
        command = [*program, "sensor", "--sensor-socket", path, *arguments]
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", *command],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches only the agent, which then stops the sensor
        )

    def wait_ready(self) -> None:
        """Wait until the sensor accepts connections. Raise InnoscopeError if it exits or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not answers(self._path):
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                self.end()
                failure = (
                    f"it exited with code {code}"
                    if code is not None
                    else f"no answer within {_START_TIMEOUT_S:.0f} s"
                )
                raise InnoscopeError(
                    f"cannot start a sensor: {failure}", remedy="run it separately: innoscope sensor"
                )
            time.sleep(_POLL_S)

    def end(self) -> None:
        """Stop the sensor by closing its standard input, and wait up to 0.6 s for its exit."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_TIMEOUT_S)
