"""Make the image's root file system: a minimal Debian with the .deb and the packages that it depends on."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from distribution.metadata import PACKAGING, Metadata

if TYPE_CHECKING:
    from pathlib import Path

#: The Debian release of the image.
SUITE = "bookworm"
#: Creates the users when the package is installed. A container never runs systemd.
_SYSUSERS = "systemd-standalone-sysusers"
#: Makes /bin a link to /usr/bin without the package usrmerge, which needs Perl (48 MB).
_MERGED = ("--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--include=usr-is-merged")
#: Files that no container needs. The licenses in /usr/share/doc/*/copyright stay.
_EXCLUDED = (
    "/usr/include/*",
    "/usr/lib/*/*.a",
    *(
        f"/usr/share/{name}/*"
        for name in ("bash-completion", "doc", "fish", "info", "lintian", "locale", "man", "zsh")
    ),
)
_INCLUDED = ("/usr/share/doc/*/copyright", "/usr/share/doc/innoscope/*")
#: Directories with Python modules, which are compiled when the image is built, because its root is read-only.
_MODULES = ("/usr/lib/innoscope/lib/python3", "/usr/lib/python3", "/usr/lib/python3.11")
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")


def make(deb: Path, metadata: Metadata, target: Path, options: tuple[str, ...] = ()) -> None:
    """Write the root file system to the archive ``target`` (.tar). ``options`` are passed to mmdebstrap."""
    settings = [f"--dpkgopt=path-exclude={glob}" for glob in _EXCLUDED]
    settings += [f"--dpkgopt=path-include={glob}" for glob in _INCLUDED]
    hooks = [
        'mkdir -p "$1/etc/sysusers.d"',
        f"upload {PACKAGING / 'container/sysusers.conf'} /etc/sysusers.d/innoscope.conf",
        f"upload {deb} /tmp/innoscope.deb",
        'chroot "$1" dpkg --install /tmp/innoscope.deb',
        f"upload {PACKAGING / 'container/sensor.sh'} /usr/bin/innoscope-sensor",
        'chmod 755 "$1/usr/bin/innoscope-sensor"',
        # Unlike time stamps, which buildah resets, checksums keep compiled modules valid.
        f'chroot "$1" python3 -m compileall -q -f --invalidation-mode unchecked-hash {" ".join(_MODULES)}',
        'rm -rf "$1"/tmp/* "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt/* "$1"/etc/*-',
    ]
    command = [
        "mmdebstrap",
        "--quiet",
        "--mode=root",
        "--variant=essential",
        "--components=main",
        *_MERGED,
        *options,
    ]
    command += ['--aptopt=APT::Install-Recommends "false"', *settings, f"--include={','.join(_depends(deb))}"]
    command += [f"--customize-hook={hook}" for hook in hooks]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(metadata.time)}
    subprocess.run([*command, SUITE, str(target)], check=True, env=environment)


def _depends(deb: Path) -> list[str]:
    """Return the packages that the .deb depends on; of the alternatives for systemd, the smallest one."""
    text = subprocess.run(
        ["dpkg-deb", "--show", "--showformat=${Pre-Depends}, ${Depends}", str(deb)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    alternatives = [set(_NAME.findall(re.sub(r"\(.*?\)", "", entry))) for entry in text.split(",")]
    names = [_SYSUSERS if _SYSUSERS in found else min(found) for found in alternatives if found]
    return sorted(set(names))
