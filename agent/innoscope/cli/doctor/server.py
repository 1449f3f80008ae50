"""Check one server: its state, access to its process, the source of its symbols, and SQL."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.cli.doctor import symbol_packages
from innoscope.cli.doctor.model import CheckResult, fail, ok, warn
from innoscope.common.errors import BadFile, InnoscopeError, SqlFailed
from innoscope.probes.catalog import default_catalog
from innoscope.target import sql
from innoscope.target.container import differing_namespaces
from innoscope.target.executable import debug_dirs
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from innoscope._native import ModuleInfo
    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target

#: Name of the check that must pass for any method to work on this server.
ACCESS = "access"

_LIBC = re.compile(r"libc(?:\.so\.\d+|-2\.\d+\.so)|ld-musl-.*\.so\.\d+")
_MEANING = {
    "symtab": "its own symbol table",
    "debug-file": "a debug file",
    "symbol-pack": "a symbol pack",
    "debugdata": "the reduced symbols of .gnu_debugdata",
    "dynsym": "exported symbols only; other functions are shown as module+0x…",
    "vdso": "the kernel's vDSO",
    "none": "no symbols; functions are shown as module+0x…",
}
_COMPLETE = {"symtab", "debug-file", "symbol-pack", "debugdata", "vdso"}


def examine(target: Target, account: LoginOptions, proc: ProcFs | None = None) -> list[CheckResult]:
    """Run all checks on one server. If the server exits during the checks, the access check fails."""
    proc = proc or ProcFs()
    checks = [_state(proc, target), _executable(target), _version(target)]
    try:
        modules = _modules(proc, target)
    except InnoscopeError as error:
        checks.append(fail(ACCESS, error.what, error.remedy))
    else:
        checks.append(ok(ACCESS, f"{len(modules)} mapped files can be read"))
        checks += _names(proc, target, modules)
    checks.append(_sql(proc, target, account))
    return [check for check in checks if check is not None]


def _state(proc: ProcFs, target: Target) -> CheckResult:
    """Check State and TracerPid in /proc/PID/status: the server must not be stopped (T, t) or traced."""
    try:
        status = proc.status(target.pid)
    except (ProcessLookupError, PermissionError) as error:
        return fail("state", str(error), "innoscope targets")
    state, tracer = status.get("State", "?"), int(status.get("TracerPid", "0") or 0)
    if tracer:
        return warn(
            "state",
            f"{state}, traced by process {tracer} ({_comm(proc, tracer)})",
            f"detach it, or: kill {tracer}",
        )
    if state.startswith(("T", "t")):
        return warn("state", f"{state}: the server is stopped", f"kill -CONT {target.pid}")
    return ok("state", f"{state}, not traced")


def _version(target: Target) -> CheckResult | None:
    """Warn if the catalog does not know the server's version."""
    if default_catalog().knows(target.flavour, target.version):
        return None
    known = default_catalog().known[target.flavour]
    return warn(
        "version",
        f"unsupported version: the catalog covers {target.flavour} {known}; no probes on the server's "
        "functions, no toggles; waits in new functions are shown as other",
        "upgrade innoscope",
    )


def _comm(proc: ProcFs, pid: int) -> str:
    try:
        return proc.stat(pid).comm
    except (ProcessLookupError, PermissionError):
        return "?"


def _executable(target: Target) -> CheckResult:
    number = ".".join(map(str, target.version))
    version = f"{number} (from {target.version_from})" if number else "of unknown version"
    what = f"{target.flavour} {version}, {target.executable}"
    if target.deleted:
        return warn(
            "executable",
            what + ", replaced since the server started",
            "symbols come from the old file; debug packages of the new file match only after a restart",
        )
    return ok("executable", what)


def _modules(proc: ProcFs, target: Target) -> list[ModuleInfo]:
    """Return the mapped files with their symbols. Raise InnoscopeError if the process cannot be read."""
    with translating(target.pid):
        dirs = debug_dirs(proc, target.pid, target.root, target.container)
        return _native.Process(target.pid, debug_dirs=dirs).modules()


def _names(proc: ProcFs, target: Target, modules: list[ModuleInfo]) -> list[CheckResult]:
    """Check the sources of the server's and libc's symbols, and report problems of other mapped files."""
    base = _base(target.executable)
    checks = []
    for module in modules:
        name = _base(module.path)
        if name == base:
            checks.append(_names_of(proc, target, module, "names of the server"))
        elif _LIBC.fullmatch(name):
            checks.append(_names_of(proc, target, module, "names of libc"))
        elif module.problem:
            checks.append(warn(f"names of {name}", module.problem))
    return checks


def _names_of(proc: ProcFs, target: Target, module: ModuleInfo, title: str) -> CheckResult:
    detail = _MEANING.get(module.symbols_from, module.symbols_from)
    if module.symbols_path:
        detail += f" ({module.symbols_path})"
    if module.problem:
        detail += f"; {module.problem}"
    if module.symbols_from in _COMPLETE and not module.problem:
        return ok(title, detail + _debug_info(proc, target, module))
    ours = target.root == "/" and "mnt" not in differing_namespaces(proc, target.pid)
    path = module.path.removeprefix(target.root) if target.root != "/" else module.path
    root = Path(proc.inside(target.pid, "/"))
    stripped = symbol_packages.Stripped(path, module.build_id, root, ours)
    return warn(title, detail, symbol_packages.remedy(stripped))


def _base(path: str) -> str:
    return PurePosixPath(path).name


def _debug_info(proc: ProcFs, target: Target, module: ModuleInfo) -> str:
    """Return a note on whether debug information is available, which ``--inlines`` needs."""
    if module.symbols_from == "symbol-pack":
        return ""
    is_server = _base(module.path) == _base(target.executable)
    path = module.symbols_path or (proc.path(target.pid, "exe") if is_server else None)
    if path is None:
        return ""
    try:
        with translating(target.pid):
            return (
                ", with debug info"
                if _native.elf_info(path).has_debug_info
                else ", without the debug info that --inlines needs"
            )
    except InnoscopeError:
        return ""


def _sql(proc: ProcFs, target: Target, account: LoginOptions) -> CheckResult:
    """Check whether ``--queries`` would work. Stacks do not need SQL, so a problem is only a warning."""
    try:
        connection = sql.connect(target, account.defaults_file, account.user, proc=proc)
        try:
            found = sql.queries(target, connection)
        finally:
            connection.close()
    except (SqlFailed, BadFile) as error:
        return warn("SQL (for --queries)", error.what, error.remedy)
    return ok("SQL (for --queries)", f"the server reports the statements of {len(found)} threads")
