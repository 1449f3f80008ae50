"""Match the catalog's function names against the names in a symbol table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Suffixes of function copies. ``.cold`` is not included: it marks a part without the entry point.
_COPY: Final = re.compile(r"(?:\.(?:isra|constprop|part|lto_priv)\.\d+)*")
#: The part of a mangled symbol after the name: parameters, then suffixes of copies.
_PARAMETERS: Final = re.compile(r"[^.]*" + _COPY.pattern)


def symbol_prefixes(function: str) -> list[str]:
    """Return the possible symbol prefixes of a function, given its qualified name (``buf_page_t::flush``)."""
    parts = function.split("::")
    if len(parts) == 1:
        length = len(function)
        return [function, f"_Z{length}{function}", f"_ZL{length}{function}"]
    nested = "".join(f"{len(part)}{part}" for part in parts)
    # The last part may be a static function in a class or namespace (L before its length).
    local = "".join(f"{len(part)}{part}" for part in parts[:-1]) + f"L{len(parts[-1])}{parts[-1]}"
    return [f"_ZN{nested}E", f"_ZNK{nested}E", f"_ZN{local}E"]


def is_symbol_of(symbol: str, functions: Iterable[str]) -> bool:
    """Return whether the symbol belongs to one of ``functions`` or to a copy of one."""
    return any(_has_prefix(symbol, prefix) for function in functions for prefix in symbol_prefixes(function))


def _has_prefix(symbol: str, prefix: str) -> bool:
    rest = _PARAMETERS if prefix.startswith("_Z") else _COPY
    return symbol.startswith(prefix) and rest.fullmatch(symbol, len(prefix)) is not None


def is_copy(symbol: str, symbols: Iterable[str]) -> bool:
    """Return whether the symbol is one of ``symbols`` or a copy of one."""
    return any(symbol.startswith(one) and _COPY.fullmatch(symbol, len(one)) for one in symbols)


def is_part(symbol: str) -> bool:
    """Return whether the symbol is the part of a function that the compiler did not inline."""
    return ".part." in symbol


def has_other_arguments(symbol: str) -> bool:
    """Return whether the arguments may differ from the source. ``.isra`` clones have other parameters."""
    return is_part(symbol) or ".isra." in symbol
