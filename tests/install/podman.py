"""Run containers with podman, with its own storage and settings.

podman's defaults do not work on every test host: it raises limits, which needs CAP_SYS_RESOURCE, and crun
does not support hybrid hierarchies (cgroup v1 and v2). The commands therefore run with other limits, and in a
mount namespace without the second hierarchy. Debian 12 has no ``catatonit``, which podman runs as the first
process of a pod, so tests must give each pod an image for this process.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from servers import ensure_packages

if TYPE_CHECKING:
    from types import TracebackType

_SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "crun"
"""
_ALONE = """\
if mountpoint --quiet /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
exec podman "$@"
"""


class Podman:
    """podman with its own storage. At the end, all its containers and images are removed."""

    def __init__(self) -> None:
        ensure_packages(["podman", "crun", "uidmap"])
        self._folder = tempfile.TemporaryDirectory(prefix="innoscope-podman-")  # podman requires a short path
        folder = Path(self._folder.name)
        (folder / "containers.conf").write_text(_SETTINGS)
        self._environment = {"PATH": "/usr/bin:/usr/sbin", "CONTAINERS_CONF": str(folder / "containers.conf")}
        storage = [f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}", "--storage-driver=overlay"]
        self._command = ["unshare", "--mount", "sh", "-ec", _ALONE, "podman", *storage]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()
        self.run("rmi", "--all", "--force")
        self._folder.cleanup()

    def remove(self) -> None:
        """Stop and remove all containers and pods."""
        self.run("pod", "rm", "--all", "--force")
        self.run("rm", "--all", "--force", "--time=30")

    def run(self, *arguments: object) -> str:
        """Run a podman command, and return its standard output. Raise AssertionError if it fails."""
        done = subprocess.run(
            [*self._command, *map(str, arguments)],
            env=self._environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"podman {arguments[0]}: {done.stderr}"
        return done.stdout

    def logs(self, name: str) -> str:
        """Return what a container has written to standard output and standard error."""
        done = subprocess.run(
            [*self._command, "logs", name],
            env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def pid(self, name: str) -> int:
        """Return the pid of a container's first process."""
        return int(self.run("inspect", "--format", "{{.State.Pid}}", name))

    def id(self, name: str) -> str:
        """Return a container's id."""
        return self.run("inspect", "--format", "{{.Id}}", name).strip()
