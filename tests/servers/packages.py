"""Install missing Debian packages. If the user is not root, the error names the packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

from servers import cache
from servers.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The package of a command, if the names differ.
_PACKAGE_OF = {
    "go": "golang-go",
    "mvn": "maven",
    "mysqladmin": "default-mysql-client",
}


def installed(package: str) -> bool:
    """Return whether the package is installed and configured."""
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.startswith("installed")


def ensure_packages(packages: Iterable[str]) -> None:
    """Install missing packages non-interactively; wait if another apt holds the lock."""
    missing = sorted({package for package in packages if not installed(package)})
    if not missing:
        return
    options = ["-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    install = ["apt-get", "install", *options, *missing]
    if os.geteuid() != 0:
        raise ServerError(f"only root can install packages: sudo apt-get install {' '.join(missing)}")
    print(f"servers: installing {' '.join(missing)}", flush=True)
    if _apt(install).returncode == 0:
        return
    update_lists()  # most failures are due to missing package lists on a new host
    result = _apt(install)
    if result.returncode != 0:
        raise ServerError(f"apt-get could not install {' '.join(missing)}:\n{result.stdout}")


def update_lists() -> None:
    """Download the package lists, under a lock, because apt-get does not wait for another update to end."""
    with cache.locked("apt-lists"):
        _apt(["apt-get", "update", "-qq"])


def ensure_commands(*commands: str) -> None:
    """Install the packages of commands that are not on PATH."""
    missing = (command for command in commands if shutil.which(command) is None)
    ensure_packages(_PACKAGE_OF.get(command, command) for command in missing)


def _apt(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
