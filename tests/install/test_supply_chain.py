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
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import npm
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
    compilers = {one["name"]: one["value"] for one in document["metadata"]["component"]["properties"]}
    assert compilers["innoscope:rustc"].startswith("rustc 1.")
    assert " clang version " in f" {compilers['innoscope:clang']}"
    assert str(ROOT) not in json.dumps(document)


def test_every_part_is_in_the_list(packages: Packages) -> None:
    refs = {part["bom-ref"] for part in listed(packages)["components"]}
    vendored = json.loads((ROOT / "agent/innoscope/daemon/http/page/vendor/libraries.json").read_text())

    for crate in licences.crates():
        ref = f"github/{crate.name}@v" if crate.crate else f"cargo/{crate.name}@"
        assert f"pkg:{ref}{crate.version}" in refs
    for library in (
        *vendored["libraries"],
        *(one for all in vendored["libraries"] for one in all.get("bundles", ())),
    ):
        assert (
            f"pkg:npm/{library['package']}" + (f"@{library['version']}" if "version" in library else "")
            in refs
        )
    for one in licences.libraries(packages.tree / SITE):
        assert f"pkg:pypi/{one.name.lower().replace('_', '-')}@{one.version}" in refs
    for path in (ROOT / "probes").rglob("*.bpf.c"):
        assert any(ref.endswith(f":{path.name}") for ref in refs), path
    assert f"pkg:pypi/ziglang@{licences.runtime().version}" in refs


def test_places_in_the_list_exist(packages: Packages) -> None:
    site = packages.tree / SITE
    for part in listed(packages)["components"]:
        (where,) = (one["value"] for one in part["properties"] if one["name"] == "innoscope:where")
        places = (packages.tree / where, site / where, site / "innoscope" / where)
        assert where == "distribution" or any(place.exists() for place in places), where


def test_c_libraries_inside_crates_are_known() -> None:
    """Find all directories in the crates that have C sources and their own license."""
    parts = licences.crates()
    known = {(one.crate, licences.VENDORED[one.crate][1]) for one in parts if one.crate}
    found = {
        (name, folder.name)
        for name, home in _homes().items()
        for folder in home.iterdir()
        if folder.is_dir() and licences.texts(folder) and any(folder.rglob("*.c"))
    }

    assert found == known | licences.NOT_COMPILED
    assert {one.name for one in parts if one.crate} == {"libbpf/libbpf", "facebook/zstd"}
    for one in parts:
        if one.crate:
            assert one.text.count("Redistribution and use in source and binary forms") >= 1, one.name


def test_bundled_sources_that_are_not_compiled_are_disabled() -> None:
    features = {node["id"]: node["features"] for node in _resolved()["resolve"]["nodes"]}
    (of_libbpf,) = (one for name, one in features.items() if "#libbpf-sys@" in name)

    assert not {"vendored-libelf", "vendored-zlib"} & set(of_libbpf)


def _resolved() -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--quiet"]
    done = subprocess.run(
        [*command, f"--manifest-path={ROOT / 'agent/native/Cargo.toml'}"], capture_output=True, check=True
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _homes() -> dict[str, Path]:
    """Return the directories of the crates that are linked into the core, by name."""
    names = {one.name for one in licences.crates()}
    return {
        one["name"]: Path(one["manifest_path"]).parent
        for one in _resolved()["packages"]
        if one["name"] in names
    }


def test_packages_inside_bundles_of_the_page_are_known() -> None:
    """Check the packages that a bundle's library depends on, and those that are recognized in the bundle."""
    vendor = ROOT / "agent/innoscope/daemon/http/page/vendor"
    libraries = json.loads((vendor / "libraries.json").read_text())["libraries"]
    for library in libraries:
        bundled = library.get("bundles", [])
        scripts = [
            (vendor / one["name"]).read_text() for one in library["files"] if one["name"].endswith(".js")
        ]
        for one in bundled:
            assert any(one["text"] in script for script in scripts), one
        published = npm.package(library["package"], library["version"], library["integrity"])
        declared = json.loads((published / "package.json").read_text()).get("dependencies", {})
        assert declared.keys() <= {one["package"] for one in bundled}
        for one in bundled:
            assert one.get("range", declared.get(one["package"])) == declared.get(one["package"])


def test_copyright_file_names_all_vendored_files() -> None:
    text = (ROOT / "packaging/debian/copyright").read_text()
    vendor = ROOT / "agent/innoscope/daemon/http/page/vendor"
    libraries = json.loads((vendor / "libraries.json").read_text())["libraries"]
    paragraphs = [dict(_fields(one)) for one in text.split("\n\n")]
    texts = {one["License"].splitlines()[0] for one in paragraphs if "Files" not in one and "License" in one}

    for paragraph in paragraphs:
        if "Files" in paragraph:
            assert set(re.split(r" (?:and|or) ", paragraph["License"])) <= texts
    for library in libraries:
        for file in library["files"]:
            path = f"agent/innoscope/daemon/http/page/vendor/{file['name']}"
            (paragraph,) = (
                one
                for one in paragraphs
                if one.get("Files", "*") != "*" and any(fnmatch(path, glob) for glob in one["Files"].split())
            )
            bundled = library.get("bundles", []) if path.endswith(".js") else []
            names = {"MIT": "Expat"}
            expected = {names.get(one["licence"], one["licence"]) for one in (library, *bundled)}
            assert set(paragraph["License"].split(" and ")) == expected, path
            for one in bundled:
                assert one["package"] in paragraph["Comment"]


def _fields(paragraph: str) -> Iterator[tuple[str, str]]:
    for field in re.split(r"\n(?! )", paragraph.strip()):
        name, _, value = field.partition(":")
        yield name, value.strip()


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
