"""Unpack servers from Debian packages of this host's release or of another suite."""

from __future__ import annotations

import os
from pathlib import Path

from servers.errors import ServerError
from servers.packages import ensure_commands, update_lists
from servers.run import run

#: The user id of the server in the chroot. The host has no user with this id.
MYSQL_UID = 64641

_MERGED = ("bin", "sbin", "lib", "lib64")


def unpack_packages(packages: tuple[str, ...], scratch: Path, home: Path) -> None:
    """Unpack packages of this host's release; apt verifies the archive's signature."""
    debs = scratch / "debs"
    debs.mkdir()
    try:
        run(["apt-get", "download", "-qq", *packages], debs)
    except ServerError:
        update_lists()  # for hosts with missing or old package lists
        run(["apt-get", "download", "-qq", *packages], debs)
    for deb in sorted(debs.glob("*.deb")):
        run(["dpkg-deb", "--extract", str(deb), str(home)], debs)
        deb.unlink()
    debs.rmdir()


def unpack_root(suite: str, packages: tuple[str, ...], home: Path) -> None:
    """Unpack packages of ``suite`` and their dependencies into a root directory, without configuring them."""
    if os.geteuid() != 0:
        raise ServerError("cannot start a server in a chroot: this needs root")
    ensure_commands("mmdebstrap")
    options = ['APT::Install-Recommends "false"', *date_options()]
    aptopts = [f"--aptopt={option}" for option in options]
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=extract", "--components=main"]
    run([*command, *aptopts, f"--include={','.join(packages)}", suite, str(home), mirror()], home.parent)
    for name in _MERGED:  # the links that base-files creates when it is configured
        if not (home / name).exists():
            (home / name).symlink_to(f"usr/{name}")
    prepare_root(home)


def prepare_root(home: Path) -> None:
    """Create the users and directories that servers need in a root directory without configured packages."""
    (home / "etc/passwd").write_text(
        f"root:x:0:0:root:/:/bin/false\nmysql:x:{MYSQL_UID}:{MYSQL_UID}:mysql:/:/bin/false\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    )
    (home / "etc/group").write_text(f"root:x:0:\nmysql:x:{MYSQL_UID}:\nnogroup:x:65534:\n")
    (home / "srv").mkdir(mode=0o755, exist_ok=True)
    home.chmod(0o755)


def date_options() -> list[str]:
    """Return the host's apt settings for the checks of release dates, for use in the new root.

    A host with a frozen mirror or clock has such settings, and the new root needs them, too.
    """
    dump = run(["apt-config", "dump"], Path("/"))
    return sorted({line.rstrip(";") for line in dump.splitlines() if line.startswith("Acquire::Check-")})


def mirror() -> str:
    """Return this host's Debian mirror."""
    release = codename()
    for refresh in (False, True):
        if refresh:  # apt lists only those sources whose package lists it has downloaded
            update_lists()
        targets = run(["apt-get", "indextargets", "--format", "$(SITE) $(CODENAME)"], Path("/"))
        for target in targets.splitlines():
            site, _, suite = target.partition(" ")
            if suite == release:
                return site
    raise ServerError(f"apt's configuration names no mirror of Debian {release}")


def codename() -> str:
    """Return the name of this host's Debian release."""
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise ServerError("this is not Debian: /etc/os-release has no VERSION_CODENAME")
