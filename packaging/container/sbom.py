"""Write the image's bill of materials: the .deb's, and all Debian packages with their versions."""

from __future__ import annotations

import json
import tarfile
from email.parser import Parser
from typing import TYPE_CHECKING, Any

from distribution.stage import SBOM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distribution.metadata import Metadata

_STATUS = "var/lib/dpkg/status"


def text(metadata: Metadata, files: Path) -> str:
    """Return the SBOM of an image with the root file system ``files`` (.tar), as a CycloneDX document."""
    with tarfile.open(files) as archive:
        document: dict[str, Any] = json.loads(_content(archive, SBOM))
        packages = list(_packages(_content(archive, _STATUS), metadata.name))
    # The .deb's SBOM names its dependencies without versions.
    own = [one for one in document["components"] if not one["bom-ref"].startswith("distribution:")]
    document["components"] = sorted(own + packages, key=lambda one: str(one["bom-ref"]))
    document["metadata"]["component"]["type"] = "container"
    (dependency,) = document["dependencies"]
    dependency["dependsOn"] = [one["bom-ref"] for one in document["components"]]
    del document["serialNumber"]  # of the .deb's SBOM
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _content(archive: tarfile.TarFile, path: str) -> str:
    file = archive.extractfile(f"./{path}")
    if file is None:
        raise FileNotFoundError(path)
    return file.read().decode()


def _packages(status: str, ours: str) -> Iterator[dict[str, Any]]:
    """Yield the installed Debian packages except our own, from dpkg's status file."""
    for paragraph in status.strip().split("\n\n"):
        field = Parser().parsestr(paragraph)
        if field["Package"] == ours or field["Status"] != "install ok installed":
            continue
        purl = f"pkg:deb/debian/{field['Package']}@{field['Version']}?arch={field['Architecture']}"
        yield {
            "type": "library", "bom-ref": purl, "purl": purl, "name": field["Package"],
            "version": field["Version"], "properties": [{"name": "innoscope:where", "value": _STATUS}],
        }  # fmt: skip
