"""What a thread is for: from the root of its stack and its name. Which names mean what is threads.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile
from innoscope.sampling.classify import plain_name
from innoscope.sampling.wait_catalog import any_of

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from innoscope.sampling.model import Frame

#: The values of the label ``group`` of mysqld_cpu_seconds.
KINDS: Final = (
    "connection", "page_cleaner", "master", "io", "purge", "redo", "replication", "background", "other",
)  # fmt: skip


#: Names of functions of which the kind is remembered: those of all servers that this process has met.
_MOST_KNOWN: Final = 65_536


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, and whether it is sure: one that is not gives way to what the thread was seen to be before."""

    name: str
    sure: bool


_OTHER: Final = Kind("other", False)
_POOL: Final = Kind("background", False)


class Kinds:
    """Applies one threads.yaml. Remembers what each function's name means."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises BadFile, which names the first problem."""
        path = path or catalog_path("threads.yaml")
        data = read_yaml(path)
        with reading(path):
            if found := problems(data):
                raise BadFile(f"{path}: {found[0]}")
            kinds = {Kind(name, True): body for name, body in data["kinds"].items()}
            #: In the order of threads.yaml, the pool last: the first that matches is meant.
            self._frames = [(kind, any_of(body["frames"])) for kind, body in kinds.items()]
            self._frames.append((_POOL, any_of(data["pool"])))
            self._comms = [(kind, any_of(body["comm"])) for kind, body in kinds.items()]
        self._known: dict[str, Kind | None] = {}

    def of(self, frames: tuple[Frame, ...], comm: str) -> Kind:
        """The kind of a thread with this stack (innermost first) and this name."""
        of_pool = False
        for frame in reversed(frames):
            kind = self._of_function(frame.function) if frame.function else None
            if kind is not None and kind.sure:
                return kind
            of_pool |= kind is not None
        return _first(self._comms, comm) or (_POOL if of_pool else _OTHER)

    def _of_function(self, function: str) -> Kind | None:
        if function not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[function] = _first(self._frames, plain_name(function))
        return self._known[function]


@cache
def default_kinds() -> Kinds:
    """Those of the installed catalog, built once."""
    return Kinds()


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


def _first(kinds: list[tuple[Kind, re.Pattern[str]]], name: str) -> Kind | None:
    return next((kind for kind, pattern in kinds if pattern.fullmatch(name)), None)
