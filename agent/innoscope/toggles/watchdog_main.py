"""The process that runs gdb and outlives everybody: the server ends up untraced and running.

Standard library only, runs with ``python -I -S``. It reads one order (a line of JSON) from stdin, whose end
is the death of the tool; it says in one line of JSON what became of it. It kills gdb when it holds the server
for too long, when its time is up, and when the tool dies. If it dies itself, the kernel kills gdb.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import IO, Any, cast

_TICK_S = 0.01
#: Seconds in which a server is put right. The kernel lets go of its threads within milliseconds.
_RIGHT_S = 5.0
_PR_SET_PDEATHSIG = 1
_STOPPED = "Tt"


def start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return int(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def threads(pid: int) -> list[tuple[str, int]]:
    """(state letter, tracer or 0) of each thread; empty when it is gone."""
    found = []
    for folder in _tasks(pid):
        try:
            lines = (folder / "status").read_text(errors="replace").splitlines()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        found.append((fields["State"][0], int(fields["TracerPid"])))
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def tracer(pid: int) -> int:
    """Who traces its first thread, which gdb attaches to before all others; 0 for nobody."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return int(next(line for line in lines if line.startswith("TracerPid:")).split()[1])
    return 0


def put_right(pid: int, server: int, session: int | None) -> float | None:
    """End every tracer of this session and continue the server. Seconds until it ran; None if it does not.

    ``server`` is a pidfd, so that nobody else is ever continued. A gdb that is killed while it attaches
    leaves threads with a SIGSTOP on its way; SIGCONT takes that back, too, and means nothing to a server that
    runs.
    """
    began = time.monotonic()
    while time.monotonic() - began < _RIGHT_S:
        seen = threads(pid)
        for who in {who for _, who in seen if who}:
            with contextlib.suppress(OSError):
                if session is not None and os.getsid(who) == session:
                    os.kill(who, signal.SIGKILL)
        if not any(who for _, who in seen):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(server, signal.SIGCONT)
            if not any(state in _STOPPED or who for state, who in threads(pid)):
                return time.monotonic() - began
        time.sleep(_TICK_S / 5)
    return None


class _Run:
    """One gdb, watched."""

    def __init__(self, order: Any, server: int) -> None:
        self._order = order
        self._server = server
        self._said = b""
        self._held_since: float | None = None
        self._tool_open = True

    def watch(self) -> dict[str, Any]:
        """Start gdb and return when it has ended and the server runs."""
        began = time.monotonic()
        gdb = subprocess.Popen(
            self._order["command"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._order["environment"],
            start_new_session=True,
            preexec_fn=_die_with_us,
        )
        output = cast("IO[bytes]", gdb.stdout).fileno()
        os.set_blocking(output, False)
        killed = None
        while not _ended(gdb.pid):
            self._wait(output)
            killed = killed or self._reason(began)
            if killed:
                os.killpg(gdb.pid, signal.SIGKILL)
        # Before it is reaped, so that the group is still this one: gdb has children of its own.
        os.killpg(gdb.pid, signal.SIGKILL)
        gdb.wait()
        self._read(output)
        events = self._events()
        clean = gdb.returncode == 0 and killed is None and events[-1:] and "held_s" in events[-1]
        righted = 0.0 if clean else put_right(self._order["pid"], self._server, gdb.pid)
        said = self._said.decode(errors="replace")
        return {
            "events": events, "killed": killed, "status": gdb.returncode, "righted_s": righted,
            "said": said[-2000:],
        }  # fmt: skip

    def _wait(self, output: int) -> None:
        """Until gdb says something, the tool dies, or a moment has passed."""
        wanted = [output] + ([0] if self._tool_open else [])
        ready, _, _ = select.select(wanted, [], [], _TICK_S)
        if output in ready and not self._read(output):
            time.sleep(_TICK_S)  # it has closed its output and ends
        if 0 in ready and not os.read(0, 4096):
            self._tool_open = False

    def _read(self, output: int) -> bool:
        try:
            piece = os.read(output, 1 << 16)
        except BlockingIOError:
            return True
        self._said += piece
        return bool(piece)

    def _reason(self, began: float) -> str | None:
        """Why gdb must go now."""
        now = time.monotonic()
        if not tracer(self._order["pid"]):
            self._held_since = None
        elif self._held_since is None:
            self._held_since = now
        if not self._tool_open:
            return "innoscope was ended"
        if self._held_since is not None and now - self._held_since > self._order["held_s"]:
            return f"it held the server for more than {self._order['held_s']:g} s"
        if now - began > self._order["deadline_s"]:
            return f"it was not done within {self._order['deadline_s']:g} s"
        return None

    def _events(self) -> list[Any]:
        lines = [line for line in self._said.split(b"\n") if line.startswith(b"innoscope {")]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line.partition(b" ")[2]))
        return found


def _ended(pid: int) -> bool:
    """Whether our child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Carry out the order."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            return
        line += piece
    order = json.loads(line)
    result: dict[str, Any]
    try:
        server = os.pidfd_open(order["pid"])
    except OSError:
        result = {"gone": True}
    else:
        same = start_time(order["pid"]) == order["start_time"]
        result = _Run(order, server).watch() if same else {"gone": True}
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
