"""Run gdb on a file without rights: ``python -P -m innoscope.toggles.backends.confined_gdb GDB ARGUMENT…``.

It runs as ``nobody`` if we are root, without capabilities, network, or access to other processes, and with
limits on memory and time (agent/native/src/confined/jail.rs). One argument names the open file.
"""

from __future__ import annotations

import sys

from innoscope import _native

if __name__ == "__main__":
    _native.become_confined(sys.argv[1], sys.argv[2:])
