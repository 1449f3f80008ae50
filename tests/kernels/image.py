"""Build the disks and boot files of the virtual machine, and store them in the cache."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from distribution import carried, toolchain
from kernels.kernels import X86_64
from servers import cache, ensure_packages, fetch
from servers.catalog import SERVERS as SPECS
from servers.debian import date_options, mirror
from servers.fetch import fetch_foreign
from servers.foreign import Archive, unpack_root
from servers.run import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kernels.kernels import Kernel, Machine

TREE = Path(__file__).parents[2]
#: The directory of the servers' cache on the machine's disk.
CACHE = Path("/cache")

#: Increase this when the recipe of a disk or of the boot files changes.
_RECIPE = 1
_SUITE = "bookworm"  # .venv requires the Python of this release
_TOOLS = ("cpio", "e2fsprogs", "kmod", "mmdebstrap", "xz-utils")
_PACKAGES = (
    "iproute2",
    "libelf1",
    "libstdc++6",
    "python3",
    "python3-bpfcc",
    "python3-seccomp",
    "python3-yaml",
    "sysbench",
)
_DRIVERS = ("virtio_pci", "virtio_blk", "ext4")
_KERNEL_PARTS = re.compile(r"^linux-(?:base|binary|image|modules)-\d\S*$", re.MULTILINE)
_FOLDERS = ("agent/innoscope", "dashboards/runbooks", "probes", "tests")
_DISTRIBUTIONS = ("innoscope", "pytest")
#: Disk sizes. The files are sparse.
_ROOT_SIZE, _TREE_SIZE = "6G", "1G"


@dataclass(frozen=True, slots=True)
class Boot:
    """A kernel's boot files in the cache."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"


def boot_files(kernel: Kernel) -> Boot:
    """Return the kernel and its initial RAM disk, made from Debian's package; apt verifies the archive."""
    name = f"{kernel.suite}-{kernel.package}-{_RECIPE}"
    return Boot(_cached(name, lambda scratch: _make_boot_files(kernel, scratch)))


def root_disk(machine: Machine) -> Path:
    """Return the path of a disk image with Debian and the servers. Run machines only on snapshots of it."""
    libraries = {package for name in machine.servers for package in SPECS[name].libraries}
    packages = sorted({*_PACKAGES, *libraries})
    if machine is X86_64:
        installations, unpack, prefix = [fetch(name) for name in machine.servers], _install_root, ""
    else:
        installations = [fetch_foreign(name, machine.debian) for name in machine.servers]
        unpack, prefix = partial(_unpack_root, machine.debian), f"{machine.debian}-"
    key = f"{_RECIPE} {packages} {[installation.folder.name for installation in installations]}"
    name = f"root-{prefix}{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    servers = [installation.folder for installation in installations]
    return _cached(name, lambda scratch: _make_root(unpack, packages, servers, scratch)) / "disk"


def _cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory of the cache. If it does not exist, ``make`` fills it, in one process at a time."""
    folder = cache.root() / "kernels" / name
    if not folder.exists():
        ensure_packages(_TOOLS)
        with cache.locked(folder.name):
            if not folder.exists():
                with cache.made_whole(folder) as scratch:
                    make(scratch)
    return folder


def tree_disk(folder: Path, machine: Machine) -> Path:
    """Make a disk image in ``folder`` with this source tree and its Python packages; return its path."""
    files = folder / "tree"
    for name in _FOLDERS:
        shutil.copytree(
            TREE / name, files / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    environment = files / ".venv"
    (environment / "bin").mkdir(parents=True)
    shutil.copy2(TREE / ".venv/pyvenv.cfg", environment)
    for name in ("python", "python3", "innoscope"):
        shutil.copy2(TREE / ".venv/bin" / name, environment / "bin", follow_symlinks=False)
    for one in _closure(_DISTRIBUTIONS):
        for file in one.files or ():
            source = Path(str(file.locate())).resolve()
            if source.is_file() and source.is_relative_to(TREE / ".venv/lib"):
                target = files / source.relative_to(TREE)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
    if machine is not X86_64:
        _replace_extensions(files, folder / "wheels", machine)
    disk = _disk(files, folder / "tree.disk", _TREE_SIZE)
    shutil.rmtree(files)
    return disk


def _replace_extensions(files: Path, wheels: Path, machine: Machine) -> None:
    """Replace the core and the extension modules of Python packages with those for another architecture."""
    shutil.copyfile(toolchain.core(machine.name), files / "agent/innoscope/_native.abi3.so")
    (site,) = (files / ".venv/lib").glob("python*/site-packages")
    needed = {extension.relative_to(site).parts[0] for extension in site.rglob("*.so")}
    for extension in site.rglob("*.so"):
        extension.unlink()
    for name, versions in carried.download(wheels, machine.name).items():
        if name in needed:
            for wheel in versions:
                carried.unpack(wheel, site)


def _closure(names: Iterable[str]) -> list[Distribution]:
    """Return the installed distributions in ``names``, and their dependencies."""
    found: dict[str, Distribution] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # needed only on other systems or by other versions of Python
            continue
        required = (text for text in found[name].requires or () if "extra ==" not in text)
        wanted += [re.split(r"[^\w.-]", text)[0] for text in required]
    return list(found.values())


def _make_root(
    unpack: Callable[[Iterable[str], Path], None],
    packages: Iterable[str],
    servers: Iterable[Path],
    scratch: Path,
) -> None:
    home = scratch / "root"
    unpack(packages, home)
    place = home / CACHE.relative_to("/") / "servers"
    place.mkdir(parents=True)
    for folder in servers:
        run(["cp", "--archive", "--reflink=auto", "--sparse=auto", str(folder), str(place)], scratch)
    _disk(home, scratch / "disk", _ROOT_SIZE)
    shutil.rmtree(home)


def _unpack_root(architecture: str, packages: Iterable[str], home: Path) -> None:
    """Unpack Debian for an architecture whose programs this host cannot run to configure the packages."""
    folder = home.with_name("archive")
    home.mkdir()
    unpack_root(Archive(_SUITE, architecture, folder).download_root(packages), home)
    shutil.rmtree(folder)


def _install_root(packages: Iterable[str], home: Path) -> None:
    options = ['APT::Install-Recommends "false"', *date_options()]
    command = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
    run([*command, *(f"--aptopt={option}" for option in options), _SUITE, str(home), mirror()], home.parent)


def _disk(files: Path, disk: Path, size: str) -> Path:
    """Make a disk image with an ext4 file system that contains ``files``, without mounting it."""
    run(["mke2fs", "-q", "-t", "ext4", "-d", str(files), str(disk), size], files.parent)
    return disk


def _make_boot_files(kernel: Kernel, scratch: Path) -> None:
    archive, files = scratch / "archive", scratch / "files"
    source = Archive(kernel.suite, kernel.machine.debian, archive)
    parts = sorted(set(_KERNEL_PARTS.findall(source.depends(kernel.package))))
    for deb in source.download([*parts, "busybox-static"]):
        run(["dpkg-deb", "--extract", str(deb), str(files)], scratch)
    if not (files / "lib").exists():
        (files / "lib").symlink_to("usr/lib")  # on Debian, base-files provides this link
    release = next((files / "lib/modules").iterdir()).name
    images = (*files.glob("boot/vmlinuz-*"), *files.glob("lib/modules/*/vmlinuz"))
    shutil.copy2(images[0], scratch / "vmlinuz")
    _make_initrd(files, release, scratch)
    for folder in (archive, files):
        shutil.rmtree(folder)


def _make_initrd(files: Path, release: str, scratch: Path) -> None:
    """Make an initial RAM disk that loads the drivers and mounts the disks."""
    home = scratch / "initrd.d"
    for name in ("bin", "dev", "modules", "new"):
        (home / name).mkdir(parents=True)
    (busybox,) = (path for path in files.glob("**/bin/busybox") if not path.is_symlink())
    shutil.copy2(busybox, home / "bin/busybox")
    run(["depmod", "-b", str(files), release], scratch)
    names = []
    for module in _modules(files, release):
        target = home / "modules" / module.name.removesuffix(".xz")
        if module.suffix == ".xz":
            with target.open("wb") as out:
                subprocess.run(["xz", "-dc", str(module)], stdout=out, check=True)
        else:
            shutil.copy2(module, target)
        names.append(target.name)
    (home / "modules/order").write_text("".join(f"{name}\n" for name in names))
    shutil.copy2(Path(__file__).with_name("initrd.sh"), home / "init")
    (home / "init").chmod(0o755)
    with (scratch / "initrd").open("wb") as out:
        listed = subprocess.run(["find", "."], cwd=home, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"], cwd=home, input=listed, stdout=out, check=True
        )
    shutil.rmtree(home)


def _modules(files: Path, release: str) -> list[Path]:
    """Return the modules of the drivers with their dependencies, in the order in which to load them."""
    found: dict[Path, None] = {}
    for driver in _DRIVERS:
        shown = run(["modprobe", "-d", str(files), "-S", release, "--show-depends", driver], files)
        for line in shown.splitlines():
            kind, _, path = line.partition(" ")
            if kind == "insmod":  # other drivers are built into the kernel
                found[Path(path.strip())] = None
    return list(found)
