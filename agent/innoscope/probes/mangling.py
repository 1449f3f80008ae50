"""From the names in the catalog to the names in a symbol table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What compilers append to copies of a function. ``.cold`` is a piece of one, never an entry.
_COPY: Final = re.compile(r"(?:\.(?:isra|constprop|part|lto_priv)\.\d+)*")
#: What is behind the mangled name: parameters, and that.
_PARAMETERS: Final = re.compile(r"[^.]*" + _COPY.pattern)


def beginnings(function: str) -> list[str]:
    """How the symbols of a C or C++ function begin, given its qualified name (``buf_page_t::flush``)."""
    parts = function.split("::")
    if len(parts) == 1:
        length = len(function)
        return [function, f"_Z{length}{function}", f"_ZL{length}{function}"]
    nested = "".join(f"{len(part)}{part}" for part in parts)
    # The last of several parts may be a static function of a class or namespace (L before its length).
    local = "".join(f"{len(part)}{part}" for part in parts[:-1]) + f"L{len(parts[-1])}{parts[-1]}"
    return [f"_ZN{nested}E", f"_ZNK{nested}E", f"_ZN{local}E"]


def is_of(symbol: str, functions: Iterable[str]) -> bool:
    """Whether it is one of all symbols of these functions, copies included."""
    return any(_is_behind(symbol, text) for function in functions for text in beginnings(function))


def _is_behind(symbol: str, beginning: str) -> bool:
    rest = _PARAMETERS if beginning.startswith("_Z") else _COPY
    return symbol.startswith(beginning) and rest.fullmatch(symbol, len(beginning)) is not None


def is_copy(symbol: str, symbols: Iterable[str]) -> bool:
    """Whether it is one of these very symbols or a copy of one."""
    return any(symbol.startswith(one) and _COPY.fullmatch(symbol, len(one)) for one in symbols)


def is_partial(symbol: str) -> bool:
    """Whether the copy's arguments are not those of the source: .isra changes them, .part is a slow half."""
    return ".isra." in symbol or ".part." in symbol
