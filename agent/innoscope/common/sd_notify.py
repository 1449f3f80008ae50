"""Report a service's state to systemd (sd_notify) without libsystemd."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> bool:
    """Send ``READY=1``, ``WATCHDOG=1``, ``STATUS=…`` or ``STOPPING=1``. Return whether it was sent."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as wire:
            wire.settimeout(1)
            wire.sendto(state.encode(), "\0" + path[1:] if path[0] == "@" else path)
    except OSError:
        return False
    return True
