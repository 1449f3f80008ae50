"""Where one server lives while it runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from servers.launch import hand_over

if TYPE_CHECKING:
    from servers.fetch import Installation


class Folder:
    """A short folder in /tmp (a socket's path has at most 107 bytes), and one in the root folder if any.

    ``outside`` is where we see the server's files, ``inside`` is what the server calls the same place.
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
        """The real folders, to be removed at the end."""
        return tuple(dict.fromkeys((self.outside.resolve(), self.path)))

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.outside / "data"

    @property
    def socket(self) -> Path:
        """The server's socket, by a path that a client outside can use."""
        return self.outside / "s.sock"

    @property
    def error_log(self) -> Path:
        """Standard output and error of the server; outside of its root folder in any case."""
        return self.path / "error.log"

    def remove(self) -> None:
        """Remove all of it."""
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)
