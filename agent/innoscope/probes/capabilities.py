"""The one right that the sensor's unit does not give: CAP_SYS_ADMIN, for uprobes by perf events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from innoscope import _native
from innoscope.common.errors import NoRights

#: The drop-in as the packages bring it, and where it takes effect.
EXAMPLE: Final = Path("/usr/share/innoscope/systemd/sys-admin.conf")
DROP_IN: Final = Path("/etc/systemd/system/innoscope-sensor.service.d/sys-admin.conf")
REMEDY: Final = (
    f"sudo install -D -m 644 {EXAMPLE} {DROP_IN} && sudo systemctl daemon-reload && "
    "sudo systemctl restart innoscope-sensor"
)


def explained(error: NoRights) -> NoRights:
    """Return why attaching failed: by the lack of uprobe links, where this kernel has none."""
    links = _native.probe_uprobe_links()
    if links.works:
        return error
    return NoRights(
        f"cannot attach probes: this kernel has no uprobe links ({links.detail}), "
        "and perf events need CAP_SYS_ADMIN",
        remedy=REMEDY,
    )
