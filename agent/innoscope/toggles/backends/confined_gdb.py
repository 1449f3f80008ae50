"""Run gdb on a file in a sandbox: ``python -P -m innoscope.toggles.backends.confined_gdb GDB ARGUMENT…``.

gdb runs as ``nobody`` if this process is root. It has no capabilities, no network, no access to other
processes, and limits on memory and time (agent/native/src/confined/jail.rs). One of the arguments names
the open file (/proc/self/fd/N).
"""

from __future__ import annotations

import os
import sys

from innoscope import _native

if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # for this process, not for gdb's own Python
    _native.become_confined(sys.argv[1], sys.argv[2:])
