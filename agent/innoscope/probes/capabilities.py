"""Explain a missing CAP_SYS_ADMIN, which perf-event uprobes need but the sensor's unit does not grant."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from innoscope import _native
from innoscope.common.errors import NoRights

#: The drop-in file as packaged.
EXAMPLE: Final = Path("/usr/share/innoscope/systemd/sys-admin.conf")
#: The path at which the drop-in file takes effect.
DROP_IN: Final = Path("/etc/systemd/system/innoscope-sensor.service.d/sys-admin.conf")
REMEDY: Final = (
    f"sudo install -D -m 644 {EXAMPLE} {DROP_IN} && sudo systemctl daemon-reload && "
    "sudo systemctl restart innoscope-sensor"
)


def explain(error: NoRights) -> NoRights:
    """Return an error that explains that this kernel lacks uprobe links; ``error`` if the kernel has them."""
    links = _native.detect("uprobe-links")
    if links.works:
        return error
    return NoRights(
        f"cannot attach probes: this kernel has no uprobe links ({links.detail}), "
        "and perf events need CAP_SYS_ADMIN",
        remedy=REMEDY,
    )
