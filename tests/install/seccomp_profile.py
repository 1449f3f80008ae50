"""Derive the sensor's seccomp profile for containers from the system call filter of its unit.

``PYTHONPATH=tests python -m install.seccomp_profile > packaging/kubernetes/seccomp.json`` writes it again.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from safety.units import Unit

#: The system calls with which setpriv changes the user. Without SETUID and SETGID, which setpriv drops, they
#: cannot be used to gain another user's rights.
_START = ("setgid", "setgroups", "setresgid", "setresuid", "setuid")


def profile() -> dict[str, Any]:
    """Return the profile in the format of the OCI runtime specification. All other calls fail with EPERM."""
    allowed = Unit.named("sensor").allowed.union(_START) - {"socket"}
    unix = {"index": 0, "value": int(socket.AF_UNIX), "op": "SCMP_CMP_EQ"}
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": sorted(allowed), "action": "SCMP_ACT_ALLOW"},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [unix]},
        ],
    }


if __name__ == "__main__":
    print(json.dumps(profile(), indent=1))
