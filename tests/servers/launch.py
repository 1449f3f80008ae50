"""Build the command line of a test server: defaults for up to 2,500 connections, then the test's options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from servers.debian import MYSQL_UID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers.fetch import Installation
    from servers.folder import Folder

#: Options as a mapping (``{"innodb_buffer_pool_size": "64M", "skip_log_bin": None}``), or as arguments.
Options = Mapping[str, "str | int | None"] | list[str] | tuple[str, ...]

_DEFAULTS = (
    "--bind-address=127.0.0.1",
    "--max-connections=2500",
    "--open-files-limit=20000",
    "--innodb-buffer-pool-size=128M",
)


def arguments(options: Options | None) -> list[str]:
    """Format options as arguments, to follow the defaults: the last value of an option wins."""
    if options is None:
        return []
    if not isinstance(options, Mapping):
        return list(options)
    pairs = ((name.replace("_", "-"), value) for name, value in options.items())
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in pairs]


def command(installation: Installation, folder: Folder, port: int, options: Options | None) -> list[str]:
    """Return the server's command. It runs without a shell, so the started process becomes the server."""
    return [
        *program(installation),
        f"--datadir={folder.inside}/data",
        f"--socket={folder.inside}/s.sock",
        f"--pid-file={folder.inside}/mysqld.pid",
        f"--tmpdir={folder.inside}",
        f"--port={port}",
        *_DEFAULTS,
        *_own(installation),
        *arguments(options),
    ]


def program(installation: Installation) -> list[str]:
    """Return the start of the command line: the binary, its base directory and its user."""
    spec, home = installation.spec, installation.home
    if spec.chroot:
        start, inside, user = ["chroot", str(home), f"/{spec.mysqld}"], Path("/"), "mysql"
    else:
        start, inside, user = [str(installation.mysqld)], home, _user()
    return [*start, "--no-defaults", f"--basedir={inside / spec.basedir}", f"--user={user}"]


def hand_over(installation: Installation, path: Path) -> None:
    """Make the server's user the owner of a directory and of everything in it."""
    uid = MYSQL_UID if installation.spec.chroot else os.geteuid()
    if os.geteuid() != 0:
        return
    for entry in (path, *path.rglob("*")):
        os.lchown(entry, uid, uid)


def _own(installation: Installation) -> Sequence[str]:
    return [option.format(home=installation.home) for option in installation.spec.options]


def _user() -> str:
    return "root" if os.geteuid() == 0 else str(os.geteuid())
