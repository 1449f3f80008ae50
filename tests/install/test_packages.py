"""Check the contents and metadata of the packages. test_installed.py checks that the packages work."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection, GNUVerSymSection
from elftools.elf.sections import SymbolTableSection
from packaging.requirements import Requirement

from distribution.carried import LIST, PYTHONS
from distribution.stage import HOME, SITE
from innoscope.cli.main import COMMANDS
from scale import long
from servers import ensure_packages

if TYPE_CHECKING:
    from install.conftest import Packages

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the core

ROOT = Path(__file__).parents[2]
#: The names of the Debian package and the RPM package of each library in pyproject.toml.
NAMES = {
    "bcrypt": ("python3-bcrypt", "python3-bcrypt"),
    "click": ("python3-click", "python3-click"),
    "prometheus-client": ("python3-prometheus-client", "python3-prometheus_client"),
    "pymysql": ("python3-pymysql", "python3-PyMySQL"),
    "pyyaml": ("python3-yaml", "python3-pyyaml"),
}
#: The newest version of glibc that all supported hosts have.
GLIBC = (2, 28)
#: The newest version of libelf's symbols that the core may need; all supported hosts have it.
LIBELF = (1, 6)  # elfutils 0.144
#: Prefixes of symbols that never have a version: Python's symbols and zlib's oldest functions.
UNVERSIONED = ("Py", "_Py", "gz")
UNITS = {"innoscope-agent.service", "innoscope-sensor.service"}
#: Directories in the .rpm, and the corresponding ones in the .deb.
MOVED = {
    "/usr/lib/systemd/": "/lib/systemd/",
    "/usr/share/zsh/site-functions/": "/usr/share/zsh/vendor-completions/",
}

_CONFIGURATION = "/etc/innoscope/agent.toml\n/etc/innoscope/servers.toml\n"


def output_of(*command: object) -> str:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout


def in_deb(packages: Packages) -> set[str]:
    lines = output_of("dpkg-deb", "--contents", packages.deb).splitlines()
    paths = {line.split(maxsplit=5)[5].split(" -> ")[0].removeprefix(".") for line in lines}
    return {path for path in paths if not path.endswith("/")}


def in_rpm(packages: Packages) -> set[str]:
    command = (
        "rpm",
        "--query",
        "--package",
        packages.rpm,
        "--queryformat",
        "[%{FILEMODES:perms} %{FILENAMES}\\n]",
    )
    lines = output_of(*command).splitlines()
    return {line.split(" ", 1)[1] for line in lines if line[0] != "d"}


def programs(tree: Path) -> list[Path]:
    """Return all ELF files in a tree."""
    files = (path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def needed_versions(path: Path, library: str) -> set[tuple[int, ...]]:
    """Return the versions of a library's symbols (GLIBC_2.28, …) that an ELF file needs.

    Fail if the file needs another symbol without a version. If glibc 2.28 lacks a function, the linker gives
    its symbol no version, and Python cannot load the file on a host with glibc 2.28.
    """
    with path.open("rb") as file:
        elf = ELFFile(file)
        of_symbol = elf.get_section_by_name(".gnu.version")
        if of_symbol is None:  # linked statically
            return set()
        symbols = elf.get_section_by_name(".dynsym")
        needed = elf.get_section_by_name(".gnu.version_r")
        assert isinstance(of_symbol, GNUVerSymSection)
        assert isinstance(symbols, SymbolTableSection)
        assert isinstance(needed, GNUVerNeedSection)
        versions = set()
        for number, symbol in enumerate(symbols.iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF" or symbol["st_info"]["bind"] != "STB_GLOBAL":
                continue
            index = of_symbol.get_symbol(number)["ndx"]
            version = needed.get_version(index) if isinstance(index, int) else None
            if version is not None:
                versions.add(version[1].name)
            else:
                assert symbol.name.startswith(UNVERSIONED), f"{path.name} needs {symbol.name}"
        names = (version.partition("_") for version in versions)
    return {tuple(map(int, number.split("."))) for name, _, number in names if name == library}


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {one.name: one for one in map(Requirement, project["dependencies"])}


def carried() -> dict[str, str]:
    """Return the versions of the Python packages that the .deb and the .rpm contain, by name."""
    return dict(re.findall(r"^([a-z-]+)==(\S+)", LIST.read_text(), flags=re.MULTILINE))


@long("lintian takes ten seconds, and packaging changes rarely")
def test_lintian_is_silent(packages: Packages) -> None:
    """Allow only the exceptions that packaging/debian/innoscope.lintian-overrides lists and explains."""
    ensure_packages(["lintian"])
    command = ["lintian", "--allow-root", "--fail-on=error,warning", str(packages.deb)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_both_have_the_same_files(packages: Packages) -> None:
    moved = set()
    for path in in_rpm(packages):
        start = next((start for start in MOVED if path.startswith(start)), "")
        moved.add(path.replace(start, MOVED.get(start, ""), 1) if start else path)
    plain = {path.removesuffix(".gz") for path in in_deb(packages)}
    own = {"changelog", "changelog.Debian", "copyright"}

    assert {path for path in plain ^ moved if not path.startswith("/usr/share/lintian/")} == {
        f"/usr/share/doc/innoscope/{name}" for name in own
    }


def test_packages_contain_the_documented_files(packages: Packages) -> None:
    paths = in_rpm(packages)
    manuals = {f"/usr/share/man/man1/innoscope-{name}.1" for name in COMMANDS}

    assert paths >= manuals | {
        "/usr/bin/innoscope",
        "/etc/innoscope/agent.toml",
        "/etc/innoscope/servers.toml",
        "/usr/share/innoscope/account.sql",
        "/usr/share/man/man1/innoscope.1",
        "/usr/share/man/man5/innoscope-agent.toml.5",
        "/usr/share/bash-completion/completions/innoscope",
        "/usr/share/zsh/site-functions/_innoscope",
        "/usr/share/fish/vendor_completions.d/innoscope.fish",
        "/usr/lib/sysusers.d/innoscope.conf",
        "/usr/lib/tmpfiles.d/innoscope.conf",
        f"/{HOME}/bin/py-spy",
        f"/{SITE}/innoscope/_native.abi3.so",
        f"/{SITE}/innoscope/catalog/probes.yaml",
        *(f"/usr/lib/systemd/system/{unit}" for unit in UNITS),
    }
    assert not [path for path in paths if path.endswith(".pyc") or "/tests/" in path]


def test_msgspec_is_included_for_each_python(packages: Packages) -> None:
    paths = "\n".join(in_rpm(packages))

    for version in PYTHONS:
        assert f"/{SITE}/msgspec/_core.cpython-{version.replace('.', '')}-" in paths


@long("the quick suite packages the core of this host, which needs this host's glibc")
def test_programs_need_no_newer_glibc_than_2_28(packages: Packages) -> None:
    """Check the versions of glibc's symbols, because RHEL 8 has glibc 2.28 and Debian 11 has glibc 2.31."""
    newest = {
        path.name: max(needed_versions(path, "GLIBC"), default=(0,)) for path in programs(packages.tree)
    }

    assert newest["_native.abi3.so"] == GLIBC
    assert newest["py-spy"] == (0,), "no longer linked statically"
    assert max(newest.values()) <= GLIBC, newest
    in_rpm = re.findall(r"\(GLIBC_([0-9.]+)\)", output_of("rpm", "-qRp", packages.rpm))
    assert max(tuple(map(int, version.split("."))) for version in in_rpm) == GLIBC


@long("the quick suite packages the core of this host, which needs this host's glibc")
def test_core_needs_only_old_symbols_of_libelf(packages: Packages) -> None:
    """Check the symbols, because the build host's libelf is newer than the libelf of RHEL 8 or Debian 11."""
    core = packages.tree / SITE / "innoscope/_native.abi3.so"

    assert max(needed_versions(core, "ELFUTILS")) <= LIBELF


def test_configuration_files_are_marked_as_such(packages: Packages) -> None:
    assert output_of("dpkg-deb", "--info", packages.deb, "conffiles") == _CONFIGURATION
    assert output_of("rpm", "-qcp", packages.rpm) == _CONFIGURATION


@pytest.mark.parametrize("name", sorted(requirements()))
def test_each_library_is_a_dependency_or_bundled(packages: Packages, name: str) -> None:
    needed = requirements()[name]
    if name in NAMES:
        deb, rpm = NAMES[name]
        depends, requires = (
            output_of("dpkg-deb", "--field", packages.deb, "Depends"),
            output_of("rpm", "-qRp", packages.rpm),
        )
        least = needed.specifier.__str__().removeprefix(">=")
        assert f"{deb} (>= {least})" in depends
        assert f"{rpm} >= {least}\n" in requires
        assert name not in carried()
    else:
        assert needed.specifier.contains(carried()[name])


def test_bundled_libraries_are_complete_and_pinned(packages: Packages) -> None:
    found = {
        one.name.lower().replace("_", "-"): one for one in distributions(path=[str(packages.tree / SITE)])
    }
    ours = found.pop("innoscope")
    available = {*found, *NAMES}

    assert {name: one.version for name, one in found.items()} == carried()
    for one in (ours, *found.values()):
        for text in one.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert needed.name.lower().replace("_", "-") in available, f"{one.name} needs {text}"


def test_licences_of_bundled_libraries_are_included(packages: Packages) -> None:
    doc = packages.tree / "usr/share/doc/innoscope"
    libraries, crates = ((doc / f"{name}-licences.txt").read_text() for name in ("carried", "crates"))

    for name, version in carried().items():
        assert re.search(
            rf"^{name.replace('-', '[-_]')} {re.escape(version)}: ", libraries, re.MULTILINE | re.IGNORECASE
        )
    for name in ("addr2line", "libbpf-rs", "pyo3", "gimli"):
        assert re.search(rf"^{name} \d\S*: (MIT|Apache|LGPL|BSD)", crates, re.MULTILINE)
    assert "see below" not in crates


def test_manuals_have_no_warnings_and_match_the_help(packages: Packages) -> None:
    pages = sorted((packages.tree / "usr/share/man").rglob("innoscope*.[15]"))
    assert len(pages) == len(COMMANDS) + 2
    for page in pages:
        command = ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(page)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={"MANWIDTH": "80", "PATH": "/usr/bin:/bin"},
        )
        assert not done.stderr, f"{page.name}: {done.stderr}"
        if page.name == "innoscope-stacks.1":
            assert "NAME\n" in done.stdout
            assert "--queries" in done.stdout
            assert "       innoscope stacks --by wait " in done.stdout


def test_rpm_scripts_use_systemd_as_usual(packages: Packages) -> None:
    scripts = output_of("rpm", "-qp", "--scripts", packages.rpm)

    for words in (
        "systemd-sysusers innoscope.conf",
        "systemctl try-restart",
        "disable --now",
        "daemon-reload",
    ):
        assert words in scripts
    assert "systemctl enable" not in scripts
