"""Write the software bill of materials (CycloneDX 1.6) from lock files, wheels and libraries.json."""

from __future__ import annotations

import base64
import datetime
import json
import re
import tomllib
import uuid
from typing import TYPE_CHECKING, Any

from distribution import carried, licences
from distribution.metadata import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distribution.metadata import Metadata

_PAGE = ROOT / "agent/innoscope/daemon/http/page/vendor/libraries.json"
_SPDX = re.compile(r"SPDX-License-Identifier: (.+?) *\*/")
_PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)((?: *\\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)
#: libbpf-sys contains libbpf's source and links it statically. libbpf's version follows the plus sign.
_LIBBPF = "libbpf-sys"

Part = dict[str, Any]


def write(path: Path, metadata: Metadata, site: Path) -> None:
    """Write the SBOM of the packages, whose libraries are staged in ``site``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(metadata, site), indent=1, sort_keys=True) + "\n")


def document(metadata: Metadata, site: Path) -> dict[str, Any]:
    """Return the SBOM as a CycloneDX document."""
    own_parts = [*_python(site), *_crates(), *_page(), *_programs(), *_needed(metadata)]
    parts = sorted({_ref(part): part for part in [*_linked(site), *own_parts]}.values(), key=_ref)
    own = {
        "type": "application", "bom-ref": metadata.name, "name": metadata.name, "version": metadata.version,
        "licenses": [{"expression": metadata.licence}],
    }  # fmt: skip
    made = datetime.datetime.fromtimestamp(metadata.time, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    content = json.dumps([own, parts], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, made + content)}",
        "version": 1,
        "metadata": {"timestamp": made, "component": own},
        "components": parts,
        "dependencies": [{"ref": metadata.name, "dependsOn": [_ref(part) for part in parts]}],
    }


def _ref(part: Part) -> str:
    return str(part["bom-ref"])


def _part(kind: str, name: str, version: str | None, licence: str | None, where: str, **more: Any) -> Part:
    part: Part = {"type": kind, "name": name, **more}
    part["bom-ref"] = more.get("purl", f"{where}:{name}")
    if version:
        part["version"] = version
    if licence:
        part["licenses"] = [{"expression": _expression(licence)}]
    part["properties"] = [{"name": "innoscope:where", "value": where}]
    return part


def _expression(licence: str) -> str:
    """Return an SPDX expression. Old crates use a slash instead of OR, Python libraries a classifier."""
    names = {"MIT License": "MIT", "BSD License": "BSD-3-Clause", "Apache Software License": "Apache-2.0"}
    return re.sub(r" */ *", " OR ", names.get(licence, licence))


def _hash(algorithm: str, content: str) -> dict[str, str]:
    return {"alg": algorithm, "content": content}


def _python(site: Path) -> Iterator[Part]:
    """Yield the bundled Python libraries, with the checksums of their wheels."""
    pinned = {name: (version, hashes) for name, version, hashes in _PINNED.findall(carried.LIST.read_text())}
    for one in licences.libraries(site):
        name = one.name.lower().replace("_", "-")
        version, hashes = pinned[name]
        sums = [_hash("SHA-256", value) for value in re.findall(r"sha256:([0-9a-f]+)", hashes)]
        yield _part(
            "library", name, version, one.licence, "usr/lib/innoscope",
            purl=f"pkg:pypi/{name}@{version}", hashes=sums,
        )  # fmt: skip


def _linked(site: Path) -> Iterator[Part]:
    """Yield the crates that are compiled into the wheels' programs, from the wheels' own SBOMs."""
    for one in licences.components(site):
        yield _part(
            "library", one["name"], one["version"], one["licenses"][0]["expression"], "usr/lib/innoscope/bin",
            purl=one["purl"], hashes=one.get("hashes", []),
        )  # fmt: skip


def _crates() -> Iterator[Part]:
    """Yield the crates that are linked into the core, and libbpf, which one of them contains."""
    lock = tomllib.loads((ROOT / "agent/native/Cargo.lock").read_text())
    sums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    for one in licences.crates():
        purl = f"pkg:cargo/{one.name}@{one.version}"
        checksum = sums[one.name, one.version]
        hashes = [_hash("SHA-256", checksum)] if checksum else []
        core = "_native.abi3.so"
        yield _part("library", one.name, one.version, one.licence, core, purl=purl, hashes=hashes)
        if one.name == _LIBBPF:
            version = one.version.rpartition("+v")[2]
            purl = f"pkg:github/libbpf/libbpf@v{version}"
            yield _part("library", "libbpf", version, one.licence, "_native.abi3.so", purl=purl)


def _page() -> Iterator[Part]:
    """Yield the live page's libraries from libraries.json."""
    for one in json.loads(_PAGE.read_text())["libraries"]:
        name, version = one["package"], one["version"]
        digest = base64.b64decode(one["integrity"].removeprefix("sha512-")).hex()
        yield _part(
            "library", name, version, one["licence"], "exporter/page/vendor",
            purl=f"pkg:npm/{name}@{version}", hashes=[_hash("SHA-512", digest)],
        )  # fmt: skip


def _programs() -> Iterator[Part]:
    """Yield our BPF programs: those compiled into the core, and sources that are compiled on the host."""
    for path in sorted((ROOT / "probes").rglob("*.bpf.c")):
        licence = _SPDX.search(path.read_text())
        where = "innoscope/uprobes" if path.parent.name == "uprobes" else "_native.abi3.so"
        yield _part("file", path.name, None, licence[1] if licence else None, where)


def _needed(metadata: Metadata) -> Iterator[Part]:
    """Yield the distribution's packages that are required, without their versions."""
    for text in metadata.depends["deb"]:
        name = text.split()[0]
        if "<<" not in text:
            yield _part("library", name, None, None, "distribution", scope="required")
