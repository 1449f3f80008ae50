"""``python -m incidents NAME``: reproduce one incident to examine it; without a name, list all."""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from incidents.all_incidents import BY_NAME
from incidents.lab import command_for, staged

if TYPE_CHECKING:
    from incidents.lab import Incident

#: Seconds between checks that the process is still running.
_POLL = 0.5


def main() -> int:
    """Reproduce the incident, run ``diagnose``, and let the incident last until Ctrl-C."""
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    if not options.name:
        for incident in BY_NAME.values():
            print(f"{incident.name:<28} {incident.server:<16} {incident.finding:<24} {incident.what}")
        print("\nmake incident NAME=…")
        return 0
    try:
        _show(BY_NAME[options.name], twin=options.twin)
    except KeyboardInterrupt:
        print("\nstopped; nothing was left behind")
    return 0


def _show(incident: Incident, *, twin: bool) -> None:
    print(f"{incident.name} on {incident.server}: {_what(incident, twin)}", flush=True)
    with staged(incident, twin=twin) as (server, pid):
        command = [*command_for(pid, incident.seconds), *incident.arguments]
        shown = " ".join(["innoscope", *command[1:]])
        print(f"pid {pid}, socket {server.socket}, log {server.error_log}\n\n$ {shown}", flush=True)
        subprocess.run(command, check=False)
        print(f"\nIt lasts until Ctrl-C. In another terminal:  sudo innoscope stacks --pid {pid}")
        print(f"  mysql --no-defaults -uroot -S {server.socket}")
        if incident.cure:
            print(f"The cure:  sudo innoscope {' '.join(incident.cure.arguments)} --pid {pid} -u root")
        sys.stdout.flush()
        while _alive(pid):
            time.sleep(_POLL)
        print(f"pid {pid} ended by itself")


def _what(incident: Incident, twin: bool) -> str:
    return f"the healthy twin of: {incident.what}" if twin else incident.what


def _alive(pid: int) -> bool:
    """Return whether the process is running. An exited child is a zombie until it is reaped."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="incidents", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="which")
    parser.add_argument("--twin", action="store_true", help="its healthy twin instead")
    options = parser.parse_args()
    if options.name and options.name not in BY_NAME:
        parser.error(f"no such incident: {options.name}; the incidents are: {', '.join(BY_NAME)}")
    return options


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
