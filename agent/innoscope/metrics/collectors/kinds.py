"""What a thread is for: from the root of its stack and its name. Which names mean what is threads.yaml."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope._native import ThreadKinds
from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from pathlib import Path

#: The values of the label ``group`` of mysqld_cpu_seconds.
KINDS: Final = (
    "connection", "page_cleaner", "master", "io", "purge", "redo", "replication", "background", "other",
)  # fmt: skip


def load(path: Path | None = None) -> ThreadKinds:
    """Read and check a threads.yaml; BadFile names the first problem."""
    path = path or catalog_path("threads.yaml")
    data = read_yaml(path)
    with reading(path):
        if found := problems(data):
            raise BadFile(f"{path}: {found[0]}")
        return ThreadKinds(data["kinds"], data["pool"])


@cache
def default_kinds() -> ThreadKinds:
    """Return those of the installed catalog, built once."""
    return load()


def problems(data: Any) -> list[str]:
    """What is wrong with a parsed threads.yaml, in words; empty when nothing is."""
    if not isinstance(data, dict) or not isinstance(data.get("kinds"), dict):
        return ["kinds must be a mapping"]
    found = [f"unknown key {key!r}" for key in data.keys() - {"version", "kinds", "pool"}]
    if data.get("version") != 1:
        found.append("version is not 1")
    if not _is_names(data.get("pool")):
        found.append("pool is not a list of names")
    for name, body in data["kinds"].items():
        if name not in KINDS:
            found.append(f"unknown kind {name!r}")
        if not isinstance(body, dict) or body.keys() != {"frames", "comm"}:
            found.append(f"{name}: wants frames and comm")
        elif not all(map(_is_names, body.values())):
            found.append(f"{name}: frames and comm are lists of names")
    return found


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)

