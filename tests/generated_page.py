"""Replace the generated part of a page, between two markers."""

from __future__ import annotations

from typing import Final

_BEGIN: Final = "<!-- generated: begin -->"
_END: Final = "<!-- generated: end -->"


def with_generated(page: str, made: str) -> str:
    """Return the page with the text between its markers replaced by ``made``."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{made}\n{_END}{after}"


def generated(page: str) -> str:
    """Return the page from its first marker on."""
    return page.partition(_BEGIN)[2]
