"""Report that a value which a rule needs is unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Missing


class Unknown(Exception):
    """Raised if ``source`` has no value. ``missing`` is the reason; None if this server does not have it."""

    def __init__(self, source: str, missing: Missing | None) -> None:
        super().__init__(source)
        self.source = source
        self.missing = missing

    @property
    def words(self) -> str:
        """Return the reason as text."""
        return self.missing.words if self.missing else f"this server does not have it ({self.source})"
