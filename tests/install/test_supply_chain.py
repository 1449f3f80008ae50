"""Check the packages' bills of materials and signatures, and that builds are reproducible."""

from __future__ import annotations

import filecmp
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from distribution import licences, sbom
from distribution.metadata import Metadata
from distribution.sign import sign
from distribution.stage import DOC, SBOM, SITE
from scale import long

if TYPE_CHECKING:
    from collections.abc import Iterator

    from install.conftest import Packages, Portable

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the core

ROOT = Path(__file__).parents[2]


def listed(packages: Packages) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((packages.tree / SBOM).read_text())
    return document


def test_list_of_parts_is_reproducible_cyclonedx(packages: Packages) -> None:
    document = listed(packages)
    now = Metadata.read()
    again = sbom.document(now, packages.tree / SITE, now.depends["deb"])

    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    refs = [part["bom-ref"] for part in document["components"]]
    assert len(refs) == len(set(refs))
    assert document["dependencies"] == [{"ref": "innoscope", "dependsOn": refs}]
    crates = [part for part in again["components"] if "cargo/" in part["bom-ref"]]
    assert crates == [part for part in document["components"] if "cargo/" in part["bom-ref"]]
    assert str(ROOT) not in json.dumps(document)


def test_every_part_is_in_the_list(packages: Packages) -> None:
    refs = {part["bom-ref"] for part in listed(packages)["components"]}
    vendored = json.loads((ROOT / "agent/innoscope/daemon/http/page/vendor/libraries.json").read_text())

    assert {f"pkg:cargo/{one.name}@{one.version}" for one in licences.crates()} <= refs
    assert {f"pkg:npm/{one['package']}@{one['version']}" for one in vendored["libraries"]} <= refs
    for one in licences.libraries(packages.tree / SITE):
        assert f"pkg:pypi/{one.name.lower().replace('_', '-')}@{one.version}" in refs
    for path in (ROOT / "probes").rglob("*.bpf.c"):
        assert any(ref.endswith(f":{path.name}") for ref in refs), path
    assert any(ref.startswith("pkg:github/libbpf/libbpf@v") for ref in refs)
    assert f"pkg:pypi/ziglang@{licences.runtime().version}" in refs


def test_crates_inside_py_spy_are_listed_with_their_licences(packages: Packages) -> None:
    refs = {part["bom-ref"] for part in listed(packages)["components"]}
    known = json.loads(Path(py_spy_list()).read_text())["components"]
    licences_text = (packages.tree / DOC / "carried-licences.txt").read_text()

    assert len(known) > 50
    assert {component["purl"] for component in known} <= refs
    for component in known:
        assert f"{component['name']} {component['version']}: " in licences_text


def py_spy_list() -> str:
    """Return the path of the bill of materials that py-spy's own wheel contains."""
    files = importlib.metadata.files("py-spy") or ()
    return str(next(file.locate() for file in files if file.name == "py-spy.cyclonedx.json"))


@long("a second build from nothing, which compiles the core twice: several minutes")
@pytest.mark.timeout(900)
def test_build_in_another_folder_has_the_same_bytes(
    packages: Packages, portable: Portable, tmp_path: Path
) -> None:
    """Compare the .deb and the .tar.gz with the results of a second build from scratch."""
    elsewhere = tmp_path / "a" / "longer" / "path"
    command: list[str | Path] = ["git", "-C", ROOT, "ls-files", "-z"]
    tracked = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name in filter(None, tracked.split("\0")):
        copy = elsewhere / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
    places = {"PYTHONPATH": str(elsewhere / "packaging"), "SOURCE_DATE_EPOCH": str(Metadata.read().time)}
    command = [
        sys.executable,
        "-m",
        "distribution",
        "--format",
        "deb",
        "--format",
        "tar",
        "--out",
        tmp_path / "out",
    ]
    subprocess.run(command, env=os.environ | places, check=True)
    (again,) = (tmp_path / "out").glob("*.deb")

    assert _parts(again) == _parts(packages.deb)
    assert filecmp.cmp(again, packages.deb, shallow=False)
    assert filecmp.cmp(tmp_path / "out" / portable.tar.name, portable.tar, shallow=False)


def _parts(deb: Path) -> set[tuple[str, int, float, str]]:
    """Return the name, mode, time and checksum of each file in a .deb, including its control files."""
    found = set()
    for kind in ("--ctrl-tarfile", "--fsys-tarfile"):
        done = subprocess.run(["dpkg-deb", kind, deb], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            for part in archive:
                file = archive.extractfile(part) if part.isreg() else None
                checksum = hashlib.sha256(file.read()).hexdigest() if file else part.linkname
                found.add((part.name, part.mode, part.mtime, checksum))
    return found


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a temporary signing key in a separate keyring."""
    home = tmp_path / "gnupg"
    home.mkdir(0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    name = "throw-away@innoscope.invalid"
    command = ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", name, "rsa2048", "sign", "never"]
    subprocess.run(command, check=True, capture_output=True)
    yield name
    subprocess.run(["gpgconf", "--kill", "all"], check=True, env=os.environ)


def test_signatures_are_made_with_the_given_key(packages: Packages, key: str, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    out.mkdir()
    copies = [Path(shutil.copy(one, out)) for one in (packages.deb, packages.rpm)]
    sums, signature = sign(copies, key)
    verify = ["gpg", "--batch", "--verify", str(signature), str(sums)]
    done = subprocess.run(verify, capture_output=True, text=True, check=True)
    assert key in done.stderr
    subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=out, check=True, capture_output=True)

    public = subprocess.run(["gpg", "--armor", "--export", key], capture_output=True, check=True).stdout
    (tmp_path / "key.asc").write_bytes(public)
    keys = ["--dbpath", str(tmp_path / "rpmdb")]
    subprocess.run(["rpmkeys", *keys, "--import", str(tmp_path / "key.asc")], check=True, capture_output=True)
    done = subprocess.run(
        ["rpmkeys", *keys, "--checksig", str(copies[1])], capture_output=True, text=True, check=True
    )
    assert "signatures OK" in done.stdout

    with copies[0].open("ab") as changed:
        changed.write(b"\0")
    bad = subprocess.run(["sha256sum", "--check", sums.name], cwd=out, capture_output=True, check=False)
    assert bad.returncode != 0
