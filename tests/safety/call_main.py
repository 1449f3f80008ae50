"""The tool that is killed: has a server's allocator called by gdb. Arguments: pid, gdb."""

from __future__ import annotations

import sys

from innoscope.target.discover import find_one
from innoscope.toggles.gdbway import GdbWriter
from innoscope.toggles.model import Way


def main() -> None:
    """One call."""
    with GdbWriter(find_one(pid=int(sys.argv[1])), gdb=sys.argv[2]) as writer:
        [step] = writer.prepare(Way("gdb", calls={"glibc": "malloc_trim(0)"}), ())
        writer.write(step)


if __name__ == "__main__":
    main()
