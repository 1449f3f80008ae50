"""Build the wheel and the packages once per session."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from distribution import deb, rpm
from distribution.metadata import Metadata
from distribution.stage import stage
from distribution.stage import wheel as build_wheel
from servers import ensure_packages

if TYPE_CHECKING:
    from pathlib import Path

#: The version to which the test upgrades the package.
NEXT = "0.1.0+next"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel in a separate folder."""
    return build_wheel(tmp_path_factory.mktemp("wheels"))


@dataclass(frozen=True, slots=True)
class Packages:
    """The .deb and .rpm of ``tree``, and ``next_deb``: the same files with a later version."""

    tree: Path
    deb: Path
    next_deb: Path
    rpm: Path


@pytest.fixture(scope="session")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    ensure_packages(("binutils", "debhelper", "rpm"))
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("dist")
    now = Metadata.read()
    tree = work / "tree"
    stage(now, wheel, tree)
    built = deb.build(now, tree, work / "deb", out)
    return Packages(tree, built, _later(built, work / "later"), rpm.build(now, tree, work / "rpm", out))


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
