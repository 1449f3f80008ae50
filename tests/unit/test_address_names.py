"""Mutexes get their names from the symbols of global variables, including static ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from innoscope.probes import address_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

#: Symbols like those of MySQL 5.5.9, with their addresses and sizes.
SYMBOLS = {
    "_ZL15LOCK_audit_mask": (0x100, 48),
    "LOCK_open": (0x200, 48),
    "LOCK_log_name": (0x300, 8),
    "LOCK_active_mi": (0x400, 48),
    "_ZL9LOCK_open": (0x500, 48),
    "_ZL19key_LOCK_audit_mask": (0x600, 48),
}


class File:
    """A server's executable with the symbols ``SYMBOLS``."""

    def __init__(self, _: int) -> None:
        pass

    def variables(self, prefixes: Sequence[str]) -> list[SimpleNamespace]:
        """Return the variables whose symbols start with one of ``prefixes``."""
        return [
            SimpleNamespace(symbol=symbol, address=address, size=size)
            for symbol, (address, size) in SYMBOLS.items()
            if symbol.startswith(tuple(prefixes))
        ]


def test_static_mutexes_follow_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_names, "_native", SimpleNamespace(CodeFile=File))
    expected = [("LOCK_active_mi", 0x400), ("LOCK_open", 0x200), ("LOCK_audit_mask", 0x100)]
    assert address_names.global_mutexes(7, 9) == expected
    assert address_names.global_mutexes(7, 2) == expected[:2]
