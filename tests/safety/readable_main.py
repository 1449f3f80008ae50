"""``readable_main.py UID``: root becomes that user; may its children read it before, within, after?"""

from __future__ import annotations

import os
import subprocess
import sys

from innoscope.agent.privileges import readable_by_children
from innoscope.errors import NoRights


def readable() -> bool:
    """Whether a child may open our memory."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec 3</proc/{os.getpid()}/mem"], stderr=subprocess.DEVNULL, check=False
    )
    return done.returncode == 0


def main() -> None:
    """Print what was found."""
    uid = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    before = readable()
    try:
        with readable_by_children():
            within = readable()
    except NoRights as error:
        print(error.what)
        return
    print(before, within, readable())


if __name__ == "__main__":
    main()
