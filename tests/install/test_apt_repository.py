"""apt installs the .deb from the signed repository, and refuses packages and lists that were changed."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from distribution import apt
from distribution.metadata import Metadata
from install.machine import Machine
from install.rootfs import clean_root, depends
from servers import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from install.conftest import Packages

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the core

LINE = "deb [signed-by=/etc/apt/keyrings/innoscope.asc] file:/repository ./"
ONLY = ("--option=Dir::Etc::SourceList=/etc/apt/innoscope.list", "--option=Dir::Etc::SourceParts=-")


@pytest.fixture
def repository(packages: Packages, key: str, tmp_path: Path) -> Path:
    ensure_packages(("apt-utils",))
    signed = apt.repository([packages.deb], key, tmp_path)
    signed.parent.chmod(0o755)
    return signed.parent


@pytest.fixture
def machine(packages: Packages, repository: Path) -> Iterator[Machine]:
    """Yield a machine that is configured as docs/install.md says."""
    with Machine(clean_root(depends(packages.deb)), {repository: "/repository"}, booted=False) as one:
        keyrings = one.root / "etc/apt/keyrings"
        keyrings.mkdir(exist_ok=True)
        shutil.copy(repository / apt.KEY, keyrings)
        (one.root / "etc/apt/innoscope.list").write_text(LINE + "\n")
        yield one


def update(machine: Machine) -> str:
    """Return the output of ``apt-get update``.

    Make every failure an error: by default, apt only warns if it can keep an older list.
    """
    return machine.run("apt-get", *ONLY, "--option=APT::Update::Error-Mode=any", "update", check=False)


def install(machine: Machine, *, check: bool = True) -> str:
    return machine.run("apt-get", *ONLY, "install", "--yes", "--quiet", "innoscope", check=check)


def is_installed(machine: Machine) -> bool:
    return "ok installed" in machine.run("dpkg-query", "-W", "-f=${Status}", "innoscope", check=False)


def test_package_is_installed_from_the_repository(machine: Machine) -> None:
    assert "E:" not in update(machine)
    install(machine)
    assert is_installed(machine)
    assert "usage" in machine.run("innoscope", "--help").lower()


def test_changed_package_is_refused(machine: Machine, repository: Path, packages: Packages) -> None:
    """Flip one bit of the package, so that its name and size stay the same."""
    assert "E:" not in update(machine)
    deb = repository / packages.deb.name
    raw = bytearray(deb.read_bytes())
    raw[-100] ^= 1
    deb.write_bytes(raw)

    assert "Hash Sum mismatch" in install(machine, check=False)
    assert not is_installed(machine)


def test_changed_list_of_packages_is_refused(machine: Machine, repository: Path, packages: Packages) -> None:
    """Replace the package, and put its checksum into the list, as an attacker on the server would."""
    shutil.copy(packages.next_deb, repository / packages.deb.name)
    text = subprocess.run(
        ["apt-ftparchive", "packages", "."], cwd=repository, capture_output=True, check=True
    )
    (repository / "Packages").write_bytes(text.stdout)
    (repository / "Packages.gz").unlink()

    said = update(machine)
    assert "E:" in said, said
    assert "E:" in install(machine, check=False)
    assert not is_installed(machine)


def test_repository_signed_with_another_key_is_refused(machine: Machine, repository: Path) -> None:
    subprocess.run(
        ["gpg", "--batch", "--passphrase", "", "--quick-generate-key", "other@innoscope.invalid", "rsa2048"],
        check=True, capture_output=True,
    )  # fmt: skip
    apt.repository([], "other@innoscope.invalid", repository.parent)

    said = update(machine)
    assert "NO_PUBKEY" in said
    assert "E:" in install(machine, check=False)
    assert not is_installed(machine)


def test_maintainer_is_configurable(monkeypatch: pytest.MonkeyPatch, packages: Packages) -> None:
    assert Metadata.read().maintainer in _field(packages.deb)
    monkeypatch.setenv("MAINTAINER", "Packagers <packages@example.org>")
    assert Metadata.read().maintainer == "Packagers <packages@example.org>"
    for wrong in ("packagers", "<packages@example.org>", "Packagers <a@b>\nDepends: x", "%(id) <a@b>"):
        monkeypatch.setenv("MAINTAINER", wrong)
        with pytest.raises(SystemExit, match="MAINTAINER"):
            Metadata.read()


def _field(deb: Path) -> str:
    done = subprocess.run(
        ["dpkg-deb", "--field", deb, "Maintainer"], capture_output=True, text=True, check=True
    )
    return done.stdout
