"""Find a file's functions by readable name, and suggest names that resemble a misspelled one."""

from __future__ import annotations

import difflib
import re
from fnmatch import translate
from typing import TYPE_CHECKING, Final

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope._native import CodeFile, Function

_SHOWN: Final = 5
#: Names whose lengths differ by more than this are skipped for speed, because a server has 60,000 names.
_MAX_LENGTH_DIFFERENCE: Final = 4


def readable(symbol: str) -> str:
    """Return the demangled name without parameters."""
    return _native.demangle([symbol])[0]


def demangled(file: CodeFile) -> Iterator[tuple[Function, str]]:
    """Yield all functions of a file with their demangled names. This takes a few tenths of a second."""
    functions = file.functions([""])
    return zip(functions, _native.demangle([found.symbol for found in functions]), strict=True)


def glob(text: str) -> Callable[[str], object]:
    """Return a function that tests whether a whole name matches a pattern with ``*``, ``?`` and ``[…]``."""
    return re.compile(translate(text)).fullmatch


def names(file: CodeFile, wanted: str) -> list[str]:
    """Return a few similar names: first those that contain ``wanted``, then those with a similar spelling."""
    known = {name.partition(" [clone ")[0] for _, name in demangled(file)}
    last = wanted.strip("*?").rpartition("::")[2].lower()
    parts = sorted((name for name in known if last and last in name.lower()), key=len)
    found = dict.fromkeys(parts[:_SHOWN])
    if len(found) < _SHOWN:
        alike = [name for name in known if abs(len(name) - len(wanted)) <= _MAX_LENGTH_DIFFERENCE]
        found |= dict.fromkeys(difflib.get_close_matches(wanted, sorted(alike), n=_SHOWN, cutoff=0.75))
    return list(found)[:_SHOWN]
