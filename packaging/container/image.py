"""Write the root file system as an OCI image with buildah."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from distribution.metadata import Metadata, run

if TYPE_CHECKING:
    from pathlib import Path

#: The uid and gid of the agent, as numbers: Kubernetes cannot check `runAsNonRoot` for a name.
AGENT = "9977:9977"


def write(files: Path, metadata: Metadata, archive: Path, work: Path) -> None:
    """Write the image with the root file system ``files`` to ``archive``, an OCI archive.

    All timestamps are set to the time of the last commit, so the same packages give the same image.
    """
    storage = ["--root", str(work / "storage"), "--runroot", str(work / "run"), "--storage-driver", "vfs"]
    buildah = ["buildah", *storage]
    container = run([*buildah, "from", "scratch"]).strip()
    try:
        run([*buildah, "add", "--quiet", container, str(files), "/"])
        run([*buildah, "config", *_settings(metadata), container])
        archive.unlink(missing_ok=True)
        target = f"oci-archive:{archive}:{metadata.name}:{metadata.version}"
        options = ["--quiet", "--disable-compression=false", "--timestamp", str(metadata.time)]
        run([*buildah, "commit", *options, container, target])
    finally:
        subprocess.run([*buildah, "rm", container], check=False, stdout=subprocess.DEVNULL)


def _settings(metadata: Metadata) -> list[str]:
    """Return the options of `buildah config`: the user, the commands and the labels."""
    labels = {
        "title": metadata.name, "description": metadata.summary, "version": metadata.version,
        "licenses": metadata.licence, "vendor": metadata.maintainer,
    }  # fmt: skip
    options = ["--user", AGENT, "--entrypoint", '["/usr/bin/innoscope"]', "--cmd", "agent", "--port", "9977"]
    options += ["--env", "PATH=/usr/bin:/usr/sbin", "--env", "LANG=C.UTF-8", "--stop-signal", "SIGTERM"]
    for name, value in labels.items():
        options += ["--label", f"org.opencontainers.image.{name}={value}"]
    return options
