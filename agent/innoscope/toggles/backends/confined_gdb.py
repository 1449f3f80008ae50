"""Run gdb on a file in a sandbox: ``python -P -m innoscope.toggles.backends.confined_gdb GDB ARGUMENT…``.

gdb runs as ``nobody`` if this process is root. It has no capabilities, no network, no access to other
processes, and limits on memory and time (agent/native/src/confined/jail.rs). One argument is the open file.
"""

from __future__ import annotations

import sys

from innoscope import _native

if __name__ == "__main__":
    _native.become_confined(sys.argv[1], sys.argv[2:])
