"""Read ``probes/catalog/waits.yaml``, which defines wait classes and the rules that assign them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field

from innoscope import _native
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.descriptors import KINDS, SYSCALLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ThreadState = Literal["sleeping", "running"]
_Name = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z")]
_Words = Annotated[str, Meta(min_length=1)]
#: Classes that the classifier assigns to a thread if no rule matches.
_REQUIRED: Final = frozenset({"on_cpu", "other"})


class WaitClass(Entry, frozen=True):
    """One wait class. ``state`` is the default state of its rules."""

    label: _Words
    about: _Words
    state: ThreadState | None = None


class WaitRule(Entry, frozen=True):
    """One rule. It matches if all of its non-empty conditions hold."""

    wait: str = field(name="class")
    state: ThreadState | None = None
    frames: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    leaf: tuple[str, ...] = ()
    never: tuple[str, ...] = field(default=(), name="not")
    comm: tuple[str, ...] = ()
    syscalls: frozenset[str] = field(default=frozenset(), name="syscall")
    files: frozenset[str] = field(default=frozenset(), name="file")

    def __post_init__(self) -> None:
        """Raise ValueError if a constraint that the types cannot express is violated."""
        if not any((self.frames, self.also, self.leaf, self.comm, self.syscalls, self.files)):
            raise ValueError("has no condition")
        if unknown := self.syscalls - SYSCALLS:
            raise ValueError(f"unknown system call {min(unknown)!r}")
        if unknown := self.files - KINDS:
            raise ValueError(f"unknown kind of file {min(unknown)!r}")
        for patterns in (self.frames, self.also, self.leaf, self.never, self.comm):
            check_patterns(patterns)


class WaitCatalog(Entry, frozen=True):
    """The contents of waits.yaml. ``lists`` contains only YAML anchors."""

    version: Literal[1]
    classes: dict[_Name, WaitClass]
    rules: tuple[WaitRule, ...]
    libraries: tuple[str, ...] = ()
    library_functions: tuple[str, ...] = ()
    lists: Any = None

    def __post_init__(self) -> None:
        """Raise ValueError if the rules or the code use a missing class, or if a pattern is malformed."""
        for name in sorted(_REQUIRED - self.classes.keys()):
            raise ValueError(f"class {name} is missing")
        for number, rule in enumerate(self.rules):
            if rule.wait not in self.classes:
                raise ValueError(f"rules[{number}]: unknown class {rule.wait!r}")
        check_patterns(self.libraries)
        check_patterns(self.library_functions)


def load(path: Path | None = None) -> WaitCatalog:
    """Read and check the catalog. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(path or catalog_path("waits.yaml"), WaitCatalog)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError if a pattern is malformed, or if the patterns cannot be compiled together."""
    if problem := _native.pattern_problem(patterns):
        raise ValueError(problem)
