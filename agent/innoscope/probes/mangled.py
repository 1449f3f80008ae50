"""From the names in the catalog to the names in a symbol table."""

from __future__ import annotations

import re

#: What compilers append to copies of a function. ``.cold`` is a piece of one, never an entry.
_CLONE = r"(?:\.(?:isra|constprop|part|lto_priv)\.\d+)*"


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


def pattern(function: str) -> re.Pattern[str]:
    """Matches all symbols of that function, copies included."""
    choices = [re.escape(text) + ("[^.]*" if text.startswith("_Z") else "") for text in beginnings(function)]
    return re.compile(f"(?:{'|'.join(choices)}){_CLONE}")


def symbol_pattern(symbol: str) -> re.Pattern[str]:
    """Matches that very symbol and its copies."""
    return re.compile(re.escape(symbol) + _CLONE)


def is_partial(symbol: str) -> bool:
    """Whether the copy's arguments are not those of the source: .isra changes them, .part is a slow half."""
    return ".isra." in symbol or ".part." in symbol
