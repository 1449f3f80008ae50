"""Make a symbol pack from a debug file: all symbols, and the addresses and offsets that the catalogs need."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import innoscope
from innoscope import _native
from innoscope.common.errors import BadFile, CannotWrite
from innoscope.memory import catalog as memory_catalog
from innoscope.memory.layout import root
from innoscope.memory.locks import layout as lock_layout
from innoscope.memory.statements import layout as statement_layout
from innoscope.target.native_errors import failure
from innoscope.target.symbols import installed_packs, packs
from innoscope.toggles import catalog as toggle_catalog
from innoscope.toggles.backends import gdb as backends_gdb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from innoscope._native import Member
    from innoscope.target.symbols.pack_source import PackSource
    from innoscope.toggles.backends.gdb import Described
    from innoscope.toggles.model import ToggledVariable

#: A function that takes the description of a step, and returns a context manager that wraps the step.
Step: TypeAlias = "Callable[[str], AbstractContextManager[object]]"

_LONGEST: Final = 200  # maximum length of a C type in characters; longer ones are truncated


@dataclass(frozen=True, slots=True)
class Made:
    """A symbol pack that has not been written to a file yet."""

    build_id: str
    data: bytes


def make(origin: PackSource, step: Step) -> Made:
    """Make a pack from a file with symbols and, optionally, debug information. This takes seconds.

    Raise BadFile if the file is missing, is not an ELF file, or has no build-id or no symbols.
    """
    try:
        return _make(origin, step)
    except _native.NativeError as error:
        raise BadFile(f"cannot make a symbol pack: {failure(error).detail}", remedy=_REMEDY) from error


_REMEDY: Final = "use the server's debug file, or the unstripped server: --file FILE"


def _make(origin: PackSource, step: Step) -> Made:
    file = origin.file
    info = _native.elf_info(str(file))
    if info.build_id is None:
        raise BadFile(
            f"{file} has no build-id, which identifies packs",
            remedy="use its debug file directly (docs/cli.md), or link the server with --build-id",
        )
    if not info.has_symtab:
        raise BadFile(f"{file} has no symbols: it was stripped", remedy=_REMEDY)
    layout = _layout(origin, step) if info.has_debug_info else _as_json({}, {}, {})
    with step("compressing the names"):
        about = _about(origin)
        payload = _native.pack_payload(str(file), _encoded(about), _encoded(layout))
        data = _native.pack_seal(info.build_id, zlib.compress(payload, 9), len(payload))
    return Made(info.build_id, data)


def _about(origin: PackSource) -> dict[str, Any]:
    made_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made_by = f"innoscope {innoscope.__version__}"
    return {"server": origin.server, "made_by": made_by, "made_at": made_at, "made_of": origin.name}


def _layout(origin: PackSource, step: Step) -> dict[str, Any]:
    """Return the debug information that the catalogs need about the variables of this build."""
    file = origin.file
    catalog, names = memory_catalog.load(), [setting.name for setting in memory_settings()]
    paths = list(catalog.paths)
    with step(f"reading the debug information of {origin.name}"):
        symbols = _native.symbol_in_file(str(file), sorted({*names, *map(root, paths)}))
        paths = [path for path in paths if root(path) in symbols]
        paths += sorted({*catalog.types, *lock_layout.catalog_paths(), *statement_layout.catalog_paths()})
        names = [name for name in names if name in symbols]
        answers = _native.members_in_file(str(file), [*paths, *names])
    answers = answers or _native.Members({}, {})
    with step(f"reading the debug information of {origin.name} with gdb"):
        described = backends_gdb.describe(str(file), names) or {}
    for name in set(names) - described.keys():
        if name in answers.found:
            described[name] = backends_gdb.without_gdb(answers.found[name], symbols[name].address)
    wanted = set(paths)
    return _as_json(
        {path: member for path, member in answers.found.items() if path in wanted},
        {path: reason for path, reason in answers.missing.items() if path in wanted},
        described,
    )


def memory_settings() -> Sequence[ToggledVariable]:
    """Return the variables that toggles may write in the memory of any server version, without duplicates."""
    found = {
        assignment.setting.name: assignment.setting
        for toggle in toggle_catalog.load().values()
        for generation in toggle.generations
        for backend in generation.backends
        if backend.kind == "memory"
        for assignment in backend.assignments
    }
    return [found[name] for name in sorted(found)]


def _as_json(
    members: Mapping[str, Member], missing: Mapping[str, str], described: Mapping[str, Described]
) -> dict[str, Any]:
    variables = {
        name: [one.address, one.size, one.kind, one.text[:_LONGEST]] for name, one in described.items()
    }
    fields = {path: packs.fields(member) for path, member in members.items()}
    return {"members": fields, "missing": dict(missing), "variables": variables}


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def write(made: Made, output: str) -> Path:
    """Check that Innoscope would accept the pack, and write it atomically. Return its path.

    ``output`` is a file or a directory. Raise BadFile or CannotWrite on failure.
    """
    path = Path(output)
    try:
        if output.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            path /= f"{made.build_id}.pack"
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as new:
            written = Path(new.name)
            try:
                new.write(made.data)
                new.flush()
                os.fchmod(new.fileno(), 0o644)
                os.fsync(new.fileno())
                installed_packs.about(packs.open_pack(str(written)))
                written.replace(path)
            except BaseException:
                written.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise CannotWrite(
            f"cannot write {path}: {error.strerror}", remedy="choose another: --output PATH"
        ) from error
    return path
