"""Write the software bill of materials (CycloneDX 1.6) from lock files, wheels and libraries.json."""

from __future__ import annotations

import base64
import datetime
import json
import re
import tomllib
import uuid
from typing import TYPE_CHECKING, Any

from distribution import carried, licences, toolchain
from distribution.metadata import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from distribution.metadata import Metadata

_SPDX = re.compile(r"SPDX-License-Identifier: (.+?) *\*/")
_VENDOR = "innoscope/daemon/http/page/vendor"
_PAGE = ROOT / "agent" / _VENDOR / "libraries.json"
_CORE = "_native.abi3.so"

Part = dict[str, Any]


def write(path: Path, metadata: Metadata, site: Path, depends: list[str]) -> None:
    """Write the SBOM of packages with the libraries in ``site`` and the dependencies ``depends``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(metadata, site, depends), indent=1, sort_keys=True) + "\n")


def document(metadata: Metadata, site: Path, depends: list[str]) -> dict[str, Any]:
    """Return the SBOM as a CycloneDX document."""
    crates = _crates(metadata.machine)
    own_parts = [*_python(site), *crates, _runtime(), *_page(), *_programs(), *_needed(depends)]
    parts = sorted({_ref(part): part for part in [*_linked(site), *own_parts]}.values(), key=_ref)
    own = {
        "type": "application", "bom-ref": metadata.name, "name": metadata.name, "version": metadata.version,
        "licenses": [{"expression": metadata.licence}],
        "properties": [
            {"name": f"innoscope:{name}", "value": words.splitlines()[0]}
            for name, words in toolchain.compilers().items()
        ],
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
    """Convert a license to an SPDX expression: old crates use / for OR, Python libraries use classifiers."""
    names = {"MIT License": "MIT", "BSD License": "BSD-3-Clause", "Apache Software License": "Apache-2.0"}
    return re.sub(r" */ *", " OR ", names.get(licence, licence))


def _hash(algorithm: str, content: str) -> dict[str, str]:
    return {"alg": algorithm, "content": content}


def _python(site: Path) -> Iterator[Part]:
    """Yield the bundled Python libraries, with the checksums of their wheels."""
    pinned = carried.pinned(carried.LIST) | carried.pinned(carried.PORTABLE)
    for one in licences.libraries(site):
        yield _from_pypi(one, pinned, "usr/lib/innoscope")


def _runtime() -> Part:
    """Return zig's runtime, which is linked into the core."""
    return _from_pypi(licences.runtime(), carried.pinned(toolchain.LIST), _CORE)


def _from_pypi(one: licences.Part, pinned: dict[str, tuple[str, list[str]]], where: str) -> Part:
    name = one.name.lower().replace("_", "-")
    version, sums = pinned[name]
    hashes = [_hash("SHA-256", value) for value in sums]
    purl = f"pkg:pypi/{name}@{version}"
    return _part("library", name, version, one.licence, where, purl=purl, hashes=hashes)


def _linked(site: Path) -> Iterator[Part]:
    """Yield the crates and libraries that are compiled into the wheels' programs and extension modules."""
    for one in licences.components(site):
        yield _part(
            "library", one["name"], one["version"], one["licenses"][0]["expression"], "usr/lib/innoscope",
            purl=one["purl"], hashes=one.get("hashes", []),
        )  # fmt: skip


def _crates(machine: str) -> Iterator[Part]:
    """Yield the crates linked into the core, and the C libraries that they bundle."""
    lock = tomllib.loads((ROOT / "agent/native/Cargo.lock").read_text())
    sums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    for one in licences.crates(machine):
        if one.crate:
            purl, name = f"pkg:github/{one.name}@v{one.version}", one.name.rpartition("/")[2]
            yield _part("library", name, one.version, one.licence, _CORE, purl=purl)
            continue
        purl = f"pkg:cargo/{one.name}@{one.version}"
        checksum = sums[one.name, one.version]
        hashes = [_hash("SHA-256", checksum)] if checksum else []
        yield _part("library", one.name, one.version, one.licence, _CORE, purl=purl, hashes=hashes)


def _page() -> Iterator[Part]:
    """Yield the live page's libraries from libraries.json, and the packages inside bundles."""
    for one in json.loads(_PAGE.read_text())["libraries"]:
        name, version = one["package"], one["version"]
        digest = base64.b64decode(one["integrity"].removeprefix("sha512-")).hex()
        yield _part(
            "library", name, version, one["licence"], _VENDOR,
            purl=f"pkg:npm/{name}@{version}", hashes=[_hash("SHA-512", digest)],
        )  # fmt: skip
        yield from map(_bundled, one.get("bundles", []))


def _bundled(one: dict[str, str]) -> Part:
    """Return a package inside a bundle. If its version is not known, only the range of versions is listed."""
    name, version = one["package"], one.get("version")
    purl = f"pkg:npm/{name}@{version}" if version else f"pkg:npm/{name}"
    part = _part("library", name, version, one["licence"], _VENDOR, purl=purl)
    if version is None:
        part["properties"].append({"name": "innoscope:range", "value": one["range"]})
    return part


def _programs() -> Iterator[Part]:
    """Yield our BPF programs: those built into the core, and those compiled from source on the host."""
    for path in sorted((ROOT / "probes").rglob("*.bpf.c")):
        licence = _SPDX.search(path.read_text())
        where = "innoscope/uprobes" if path.parent.name == "uprobes" else _CORE
        yield _part("file", path.name, None, licence[1] if licence else None, where)


def _needed(depends: list[str]) -> Iterator[Part]:
    """Yield the required distribution packages, without versions."""
    for text in depends:
        name = text.split()[0]
        if "<<" not in text:
            yield _part("library", name, None, None, "distribution", scope="required")
