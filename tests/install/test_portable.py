"""Run the .tar.gz from a directory, and check the .rpm for RHEL. Both bundle all Python libraries."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from distribution import carried, licences
from distribution.metadata import PACKAGING, ROOT, Metadata
from distribution.stage import DOC, SBOM, SITE
from innoscope.cli.main import COMMANDS
from innoscope.probes.object_file import Compiled
from install.machine import Machine
from install.rootfs import clean_root
from install.test_installed import UNITS, rpm_command
from install.test_packages import GLIBC, LIBELF, needed_versions, output_of, programs, requirements
from scale import long
from servers import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from install.conftest import Portable
    from servers import Server

pytestmark = [
    pytest.mark.timeout(900),  # the first test may have to build the core
    long("the quick suite installs the .deb and the .rpm for Fedora, which contain the same files"),
]

#: The newest version of zlib's symbols that may be required: RHEL 8 has zlib 1.2.11.
ZLIB = (1, 2, 11)
#: Dependencies that the .rpm for RHEL may have, besides versions of symbols. python3.11 is in the
#: AppStream repositories of RHEL 8.8, RHEL 9.2 and newer (Red Hat, "Installing and using dynamic programming
#: languages"); all else is in BaseOS since 8.0 and 9.0. RHEL's rpm supports zstd since 8.2 (bug 1715799).
FOR_RHEL = {
    "/bin/sh", "config(innoscope)", "python3.11", "systemd",
    "ld-linux-x86-64.so.2()(64bit)", "libc.so.6()(64bit)", "libm.so.6()(64bit)", "rtld(GNU_HASH)",
    "libdl.so.2()(64bit)", "libpthread.so.0()(64bit)", "libelf.so.1()(64bit)", "libz.so.1()(64bit)",
    "rpmlib(CompressedFileNames)", "rpmlib(FileDigests)", "rpmlib(PayloadFilesHavePrefix)",
    "rpmlib(PayloadIsZstd)",
}  # fmt: skip
VERSION = "innoscope, version 0.1.0\n"
RELEASES = ("bookworm", "trixie", "sid")
#: Packages that the archive needs on a minimal Debian, which already has zlib.
NEEDED = ("libelf1", "python3")


@pytest.fixture(scope="module")
def unpacked(portable: Portable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the archive, rename its directory, and return it."""
    place = tmp_path_factory.mktemp("somewhere else")
    subprocess.run(["tar", "-xzf", portable.tar, "-C", place], check=True)
    (folder,) = place.iterdir()
    return folder.rename(place / "renamed")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python that ignores installed libraries, so that it can import only the archive's."""
    path = tmp_path_factory.mktemp("python") / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    path.chmod(0o755)
    return path


def run(unpacked: Path, python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [unpacked / "innoscope", *arguments],
        env={"INNOSCOPE_PYTHON": str(python), "PATH": "/usr/bin:/bin", "HOME": str(unpacked.parent)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_archive_runs_from_any_folder(unpacked: Path, python: Path) -> None:
    assert run(unpacked, python, "--version").stdout == VERSION
    link = unpacked.parent / "link"
    link.symlink_to(unpacked / "innoscope")
    assert output_of(link, "--version") == VERSION
    for name in ("agent", "top", "toggle"):  # these import bcrypt, textual and pymysql
        assert "Usage: innoscope" in run(unpacked, python, name, "--help").stdout


def test_archive_shows_the_stacks_of_a_server(
    unpacked: Path, python: Path, server: Callable[[str], Server]
) -> None:
    pid = str(server("mysql-5.6.24").pid)
    done = run(unpacked, python, "stacks", "--pid", pid, "--all")
    assert done.returncode == 0, done.stderr
    assert "srv_master_thread" in done.stdout

    done = run(unpacked, python, "doctor", "--pid", pid)
    assert "5.6.24" in done.stdout, done.stderr


def test_archive_compiles_probes_with_the_distributions_bcc(unpacked: Path, python: Path) -> None:
    """Use a Python that cannot find bcc by itself, like RHEL's python3.11."""
    library = unpacked / "lib"
    request = {"text": "int probe(void *context) { return 0; }", "programs": ["probe"], "maps": []}
    done = subprocess.run(
        [python, "-P", "-m", "innoscope.probes.bcc_worker"],
        input=json.dumps(request).encode(),
        env={"PYTHONPATH": str(library), "BCC_KERNEL_SOURCE": str(library / "innoscope/include/shim")},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(Compiled.unpack(done.stdout).programs) == {"probe"}


def test_archive_reads_types_with_gdb(unpacked: Path, python: Path, folder: Path) -> None:
    """Check that the sandboxed child that starts gdb uses the archive's libraries, too."""
    program = folder / "program"
    command = ["gcc", "-g", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=b"unsigned short example; int main(void) { return example; }", check=True)
    program.chmod(0o755)
    script = (
        "import sys; from innoscope.toggles.backends import gdb;"
        "found = gdb.describe(sys.argv[1], ['example'])['example']; print(found.size, found.text)"
    )
    assert run_python(unpacked, python, script, str(program)) == "2 unsigned short\n"


def run_python(unpacked: Path, python: Path, script: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-P", "-c", script, *arguments],
        env={"PYTHONPATH": str(unpacked / "lib"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_archive_names_the_python_that_it_needs(unpacked: Path, python: Path) -> None:
    done = run(unpacked, python.with_name("missing"), "--version")
    assert done.returncode == 1
    assert "cannot find Python 3.11 to 3.14" in done.stderr


def test_launcher_accepts_the_bundled_pythons(unpacked: Path) -> None:
    lowest, highest = (version.replace(".", ", ") for version in (carried.PYTHONS[0], carried.PYTHONS[-1]))
    assert f"({lowest}) <= sys.version_info[:2] <= ({highest})" in (unpacked / "innoscope").read_text()


def test_all_bundled_programs_need_only_old_libraries(portable: Portable) -> None:
    found = {path.name: path for path in programs(portable.tree)}

    assert {"_native.abi3.so", "_bcrypt.abi3.so", "py-spy"} < set(found)
    for version in carried.PYTHONS:
        assert [name for name in found if name.startswith(f"_yaml.cpython-{version.replace('.', '')}-")]
    for path in found.values():
        assert max(needed_versions(path, "GLIBC"), default=(0,)) <= GLIBC, path
        assert max(needed_versions(path, "ELFUTILS"), default=(0,)) <= LIBELF, path


def test_rpm_needs_only_what_rhel_has(portable: Portable) -> None:
    needed = output_of("rpm", "-qRp", portable.rpm).splitlines()
    versions = [
        re.match(r"[a-z0-9-]+\.so\.\d\((GLIBC|ELFUTILS|ZLIB)_([0-9.]+)\)\(64bit\)$", line) for line in needed
    ]
    names = {line.split(" ")[0] for line, version in zip(needed, versions, strict=True) if version is None}

    assert names <= FOR_RHEL, names - FOR_RHEL
    for version in filter(None, versions):
        limit = {"GLIBC": GLIBC, "ELFUTILS": LIBELF, "ZLIB": ZLIB}[version[1]]
        assert tuple(map(int, version[2].split("."))) <= limit
    assert output_of("rpm", "-qp", "--recommends", portable.rpm).split() == ["gdb", "python3-bcc"]


def test_bundled_libraries_are_in_the_licences_and_the_list_of_parts(
    portable: Portable, unpacked: Path
) -> None:
    bundled = carried.pinned(carried.LIST) | carried.pinned(carried.PORTABLE)
    staged = licences.libraries(portable.tree / SITE)
    texts = (portable.tree / DOC / "carried-licences.txt").read_text()

    assert {one.name.lower().replace("_", "-"): one.version for one in staged} == {
        name: version for name, (version, _) in bundled.items()
    }
    for one in staged:
        assert f"{one.name} {one.version}: " in texts
        assert one.licence != "see below"
    for path in (portable.tree / SBOM, unpacked / "share/innoscope/sbom.cdx.json"):
        refs = {part["bom-ref"] for part in json.loads(path.read_text())["components"]}
        assert {f"pkg:pypi/{name}@{version}" for name, (version, _) in bundled.items()} <= refs
        assert "distribution:python3-click" not in refs


def test_all_requirements_are_bundled() -> None:
    bundled = carried.pinned(carried.LIST) | carried.pinned(carried.PORTABLE)
    for name, needed in requirements().items():
        assert needed.specifier.contains(bundled[name][0])


def test_components_of_wheels_without_a_list_are_listed(portable: Portable, unpacked: Path) -> None:
    listed = json.loads(licences.LINKED.read_text())
    bundled = carried.pinned(carried.PORTABLE)
    assert set(listed) == {f"{name}-{bundled[name][0]}" for name in ("bcrypt", "pyyaml")}

    core = (unpacked / "lib/bcrypt/_bcrypt.abi3.so").read_bytes()
    crates = {name.decode() for name in re.findall(rb"crates\.io-\w+/([\w-]+-[\d.]+)/", core)}
    assert crates
    assert crates <= {f"{one['name']}-{one['version']}" for one in listed[f"bcrypt-{bundled['bcrypt'][0]}"]}
    texts = (portable.tree / DOC / "carried-licences.txt").read_text()
    for components in listed.values():
        for one in components:
            assert f"{one['name']} {one['version']}: " in texts


def test_archive_has_a_name_without_a_distribution(portable: Portable) -> None:
    assert portable.tar.name == f"{Metadata.read().tar_name}.tar.gz"


@pytest.mark.parametrize("release", RELEASES)
def test_archive_needs_only_python_and_libelf(portable: Portable, release: str) -> None:
    """Run every command on a release without any Python libraries."""
    with Machine(clean_root(NEEDED, release), {portable.tar.parent: "/srv"}, booted=False) as machine:
        machine.run("tar", "-xzf", f"/srv/{portable.tar.name}", "-C", "/opt")
        home = f"/opt/{portable.tar.name.removesuffix('.tar.gz')}"
        script = " && ".join(f"{home}/innoscope {name} --help >/dev/null" for name in COMMANDS)
        machine.run("sh", "-c", script)
        assert machine.run(f"{home}/innoscope", "--version") == VERSION


def test_rpm_for_rhel_installs_and_uninstalls(portable: Portable, tmp_path: Path) -> None:
    """Install the .rpm beside a Python without libraries. rpm must ignore the dependencies on Debian."""
    with Machine(clean_root(NEEDED), booted=False) as machine:
        before = machine.files()
        rpm = rpm_command(machine, tmp_path)
        subprocess.run([*rpm, "--install", portable.rpm], check=True, capture_output=True)
        assert machine.run("innoscope", "--version") == VERSION
        script = " && ".join(f"innoscope {name} --help >/dev/null" for name in COMMANDS)
        machine.run("sh", "-c", script)
        subprocess.run([*rpm, "--erase", "innoscope"], check=True, capture_output=True)
        left = {line.split(" ", 3)[3] for line in machine.files() ^ before}
        assert not [path for path in left if "innoscope" in path and "rpm" not in path]


def test_rpm_for_rhel_can_be_a_system_extension(portable: Portable) -> None:
    """Merge the package's /usr with systemd-sysext as docs/install.md says, and start the services."""
    ensure_packages(("cpio", "rpm2cpio"))
    with Machine(clean_root(NEEDED)) as machine:
        extension = machine.root / "var/lib/extensions/innoscope"
        release = extension / "usr/lib/extension-release.d/extension-release.innoscope"
        release.parent.mkdir(parents=True)
        release.write_text("ID=_any\n")
        unpack = f"rpm2cpio {portable.rpm} | cpio --extract --make-directories --quiet './usr/*'"
        subprocess.run(["sh", "-c", unpack], cwd=extension, check=True)
        machine.run("mount", "--make-rshared", "/")  # as on hosts; systemd does not do this in containers
        machine.run("systemd-sysext", "merge")
        assert machine.run("innoscope", "--version") == VERSION

        machine.run("systemd-sysusers")
        machine.run("systemd-tmpfiles", "--create", "innoscope.conf")
        configuration = machine.root / "etc/innoscope/agent.toml"
        configuration.parent.mkdir()
        shutil.copy(PACKAGING / "agent.toml", configuration)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "start", *UNITS)
        assert {machine.show(unit, "ActiveState") for unit in UNITS} == {"active"}
        machine.run("systemctl", "stop", *UNITS)
        machine.run("systemd-sysext", "unmerge")
        assert not (machine.root / "usr/bin/innoscope").exists()


def test_documented_commands_install_the_units(portable: Portable) -> None:
    """Run the commands of docs/install.md on a host with only Python, libelf and systemd."""
    text = (ROOT / "docs" / "install.md").read_text()
    block = text.partition("**The `.tar.gz` with units.**")[2].partition("\n\n")[2].partition("\n\n")[0]
    script = "\n".join(
        ["set -e", "cd /srv", *(line.strip().replace("sudo ", "") for line in block.splitlines())]
    )
    with Machine(clean_root(NEEDED), {portable.tar.parent: "/srv"}) as machine:
        machine.run("bash", "-c", script)
        machine.run("systemctl", "enable", "--now", *UNITS)
        assert {machine.show(unit, "ActiveState") for unit in UNITS} == {"active"}
        assert machine.run("/usr/local/bin/innoscope", "--version") == VERSION
