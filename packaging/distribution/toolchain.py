"""Build the core with zig, which can target an older glibc than this host's.

A library that is linked by the host's compiler requires the host's glibc or a newer one. zig can target any
glibc version; packaging/zig-cc.sh sets the one we use. The core is linked with the host's libelf and zlib,
which works because it uses only functions that older versions of these libraries have too.

zig can also cross-compile. In that case, rustup adds Rust's standard library for the target architecture, and
apt downloads Debian's libelf and zlib for it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sysconfig
from pathlib import Path

from distribution import sysroot
from distribution.carried import PIP
from distribution.metadata import PACKAGING, ROOT, run

LIST = PACKAGING / "zig.txt"
_FOLDER = ROOT / "build" / "zig"
_NATIVE = ROOT / "agent" / "native"
_COMPILER = PACKAGING / "zig-cc.sh"
#: The core's sources, and the files that describe how it is built.
_INPUTS = (
    *(_NATIVE / name for name in ("Cargo.toml", "Cargo.lock", "build.rs", "src")),
    *(ROOT / "probes" / name for name in ("snapshot", "profile", "trace", "include")),
    LIST,
    _COMPILER,
    Path(__file__),
    Path(sysroot.__file__),
)


def zig() -> Path:
    """Download zig if necessary. Return the directory of its program and libraries."""
    done = _FOLDER / LIST.name
    if not done.exists() or done.read_text() != LIST.read_text():
        shutil.rmtree(_FOLDER, ignore_errors=True)
        options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile"]
        run([*PIP, "install", *options, "--target", str(_FOLDER), "--requirement", str(LIST)])
        shutil.copyfile(LIST, done)
    return _FOLDER / "ziglang"


def core(machine: str = platform.machine()) -> Path:
    """Build the core for the older glibc, and return its path. ``machine`` is as printed by ``uname -m``."""
    # Separate from the directory of `make setup`: PyO3's settings differ, so with a shared directory each of
    # the two builds would recompile PyO3 after the other.
    folder = _NATIVE / "target" / "packages"
    if machine != platform.machine():
        run(["rustup", "--quiet", "target", "add", _target(machine)])
    options = ["--release", "--locked", "--quiet", "--lib", "--crate-type=cdylib", f"--target-dir={folder}"]
    run(
        ["cargo", "rustc", *options, f"--manifest-path={_NATIVE / 'Cargo.toml'}"],
        env=os.environ | _environment(machine),
    )
    return folder / _target(machine) / "release" / "lib_native.so"


def compilers() -> dict[str, str]:
    """Return what the compilers of the core and of the BPF programs say about their versions, by name."""
    commands = {"rustc": ["rustc", "--version", "--verbose"], "clang": ["clang", "--version"]}
    return {name: run(command) for name, command in commands.items()}


def fingerprint() -> str:
    """Return a checksum of the core's sources and compilers. Equal checksums mean equal cores."""
    digest = hashlib.sha256("".join(compilers().values()).encode())
    for given in _INPUTS:
        for path in sorted(given.rglob("*")) if given.is_dir() else [given]:
            if path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(ROOT)} {content}\n".encode())
    return digest.hexdigest()


def _target(machine: str) -> str:
    return f"{machine}-unknown-linux-gnu"


def _environment(machine: str) -> dict[str, str]:
    """Return the environment variables with which cargo and libbpf-sys build for the older glibc."""
    multiarch = sysconfig.get_config_var("MULTIARCH")
    includes, libraries = [f"/usr/include/{multiarch}"], Path(f"/usr/lib/{multiarch}")
    if machine != platform.machine():
        includes, libraries = [], sysroot.libraries(machine)
    underscored = _target(machine).replace("-", "_")
    compiler = str(_COMPILER)
    return {
        "ZIG": str(zig() / "zig"),
        "ZIG_GLOBAL_CACHE_DIR": str(_FOLDER / "cache"),
        "ZIG_MACHINE": machine,
        "CARGO_BUILD_TARGET": _target(machine),
        f"CARGO_TARGET_{underscored.upper()}_LINKER": compiler,
        f"CC_{underscored}": compiler,
        # libelf.h and zlib.h, after the headers of zig's glibc
        "LIBBPF_SYS_EXTRA_CFLAGS": " ".join(f"-idirafter {one}" for one in ("/usr/include", *includes)),
        f"LIBBPF_SYS_LIBRARY_PATH_{underscored}": str(libraries),
    }
