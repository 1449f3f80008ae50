"""Build the wheel and the packages once per session."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import innoscope
import scale
from distribution import carried, deb, rpm, tar, toolchain
from distribution.metadata import Metadata
from distribution.stage import PORTABLE, SYSTEM, Parts, stage
from distribution.stage import wheel as build_wheel
from servers import cache, ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The core that `make setup` built.
HERE = Path(innoscope.__file__).parent / "_native.abi3.so"
#: The version to which the test upgrades the package.
NEXT = "0.1.0+next"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel in a temporary directory, and return its path."""
    return build_wheel(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the core for the older glibc; without ``--full``, the one that `make setup` built for this host.

    The core for the older glibc takes two minutes to build, and is built only if no earlier run built it from
    the same sources. The test that compares the packages with a second build from scratch also detects an
    outdated core.
    """
    if not scale.chosen.full:
        return HERE
    folder = cache.root() / "cores" / toolchain.fingerprint()
    with cache.locked("cores"):
        if not folder.exists():
            built = toolchain.core()
            with cache.made_whole(folder) as scratch:
                shutil.copy(built, scratch)
    return folder / "lib_native.so"


@pytest.fixture(scope="session")
def parts(wheel: Path, core: Path, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return Parts(wheel, core, carried.download(tmp_path_factory.mktemp("libraries")))


@dataclass(frozen=True, slots=True)
class Packages:
    """The .deb and .rpm made from ``tree``, and ``next_deb``: the same .deb with a later version."""

    tree: Path
    deb: Path
    next_deb: Path
    rpm: Path


@pytest.fixture(scope="session")
def packages(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    ensure_packages(("binutils", "debhelper", "rpm"))
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("dist")
    now = Metadata.read()
    tree = work / "tree"
    stage(now, SYSTEM, parts, tree)
    built = deb.build(now, tree, work / "deb", out)
    return Packages(
        tree, built, _later(built, work / "later"), rpm.build_fedora(now, tree, work / "rpm", out)
    )


@dataclass(frozen=True, slots=True)
class Portable:
    """The .rpm for RHEL and the .tar.gz, made from ``tree``."""

    tree: Path
    rpm: Path
    tar: Path


@pytest.fixture(scope="session")
def portable(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Portable:
    ensure_packages(("binutils", "rpm"))
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("dist")
    now = Metadata.read()
    tree = work / "tree"
    stage(now, PORTABLE, parts, tree)
    return Portable(tree, rpm.build_el(now, tree, work / "el", out), tar.build(now, tree, work / "tar", out))


def _later(built: Path, folder: Path) -> Path:
    """Repack the .deb with a later version, which is faster than another build."""
    subprocess.run(["dpkg-deb", "--raw-extract", built, folder], check=True)
    control = folder / "DEBIAN" / "control"
    control.write_text(re.sub("^Version: .*$", f"Version: {NEXT}-1", control.read_text(), flags=re.MULTILINE))
    later = folder.with_suffix(".deb")
    subprocess.run(
        ["dpkg-deb", "-Zgzip", "-z1", "--build", folder, later], check=True, stdout=subprocess.PIPE
    )
    return later


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
