"""Read ``probes/catalog/waits.yaml``: the wait classes and the rules that tell them apart."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, field

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.descriptors import KINDS, SYSCALLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

State = Literal["sleeping", "running"]
_Name = Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z")]
_Words = Annotated[str, Meta(min_length=1)]
#: Classes that the code itself assigns.
_REQUIRED: Final = frozenset({"on_cpu", "other"})


class WaitClass(Entry, frozen=True):
    """One wait class. ``state`` limits all its rules."""

    label: _Words
    about: _Words
    state: State | None = None


class Rule(Entry, frozen=True):
    """One rule: every condition that is not empty must hold."""

    wait: str = field(name="class")
    state: State | None = None
    frames: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    leaf: tuple[str, ...] = ()
    never: tuple[str, ...] = field(default=(), name="not")
    comm: tuple[str, ...] = ()
    syscalls: frozenset[str] = field(default=frozenset(), name="syscall")
    files: frozenset[str] = field(default=frozenset(), name="file")

    def __post_init__(self) -> None:
        """Check what the types cannot."""
        if not any((self.frames, self.also, self.leaf, self.comm, self.syscalls, self.files)):
            raise ValueError("has no condition")
        if unknown := self.syscalls - SYSCALLS:
            raise ValueError(f"unknown system call {min(unknown)!r}")
        if unknown := self.files - KINDS:
            raise ValueError(f"unknown kind of file {min(unknown)!r}")
        for patterns in (self.frames, self.also, self.leaf, self.never, self.comm):
            check_patterns(patterns)


class Catalog(Entry, frozen=True):
    """The whole file. ``lists`` holds YAML anchors only."""

    version: Literal[1]
    classes: dict[_Name, WaitClass]
    rules: tuple[Rule, ...]
    libraries: tuple[str, ...] = ()
    lists: Any = None

    def __post_init__(self) -> None:
        """Check that the rules and the code use classes that exist."""
        for name in sorted(_REQUIRED - self.classes.keys()):
            raise ValueError(f"class {name} is missing")
        for number, rule in enumerate(self.rules):
            if rule.wait not in self.classes:
                raise ValueError(f"rules[{number}]: unknown class {rule.wait!r}")
        check_patterns(self.libraries)

    def state(self, rule: Rule) -> State | None:
        """Return the state to which a rule is limited, by itself or by its class."""
        return rule.state or self.classes[rule.wait].state


def load(path: Path | None = None) -> Catalog:
    """Read and check the catalog. Raises BadFile."""
    return read_yaml(path or catalog_path("waits.yaml"), Catalog)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError if a pattern is malformed, or if they cannot be compiled together."""
    malformed = (re.error, OverflowError, RecursionError)
    for pattern in patterns:
        if pattern.startswith("/"):  # a glob is always valid
            try:
                re.compile(f"(?:{to_regex(pattern)})")
            except malformed as error:
                raise ValueError(f"malformed pattern {pattern!r:.80}: {error}") from error
    try:
        any_of(patterns)
    except malformed as error:
        raise ValueError(f"malformed patterns: {error}") from error


def to_regex(pattern: str) -> str:
    """Return the regular expression, for ``fullmatch``, of a glob or of ``/a regular expression/``."""
    if len(pattern) > 1 and pattern.startswith("/") and pattern.endswith("/"):
        return pattern[1:-1]
    return ".*".join(re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))


def any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Compile a list of patterns to one expression, for ``fullmatch``. An empty list matches nothing."""
    return re.compile("|".join(f"(?:{to_regex(pattern)})" for pattern in patterns) or r"(?!)")
