"""The directory of a running server."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from servers.launch import hand_over

if TYPE_CHECKING:
    from servers.fetch import Installation


class Folder:
    """A server's directory. It is in /tmp to keep paths short: a Unix socket path is limited to 107 bytes.

    A server in a chroot also gets a directory in the chroot. ``outside`` is the directory's path on the host,
    and ``inside`` its path as the server sees it.
    """

    def __init__(self, installation: Installation) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"innoscope-{installation.spec.name}-", dir="/tmp"))
        self.path.chmod(0o755)
        self.outside = self.path
        self.inside = Path(self.path)
        if installation.spec.chroot:
            inner = installation.home / "srv" / self.path.name
            inner.mkdir(mode=0o755)
            hand_over(installation, inner)
            self.outside = self.path / "in"
            self.outside.symlink_to(inner)
            self.inside = Path("/srv") / self.path.name

    @property
    def places(self) -> tuple[Path, ...]:
        """Return the directories to remove when the server is closed."""
        return tuple(dict.fromkeys((self.outside.resolve(), self.path)))

    @property
    def data(self) -> Path:
        return self.outside / "data"

    @property
    def socket(self) -> Path:
        """Return the path of the server's socket on the host."""
        return self.outside / "s.sock"

    @property
    def error_log(self) -> Path:
        """Return the path of the log of standard output and error. The log is never in the chroot."""
        return self.path / "error.log"

    def remove(self) -> None:
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)
