"""What rules cannot be told, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Missing


class Unknown(Exception):
    """``source`` would have told it; ``missing`` says why not, None where this server has no such number."""

    def __init__(self, source: str, missing: Missing | None) -> None:
        super().__init__(source)
        self.source = source
        self.missing = missing

    @property
    def words(self) -> str:
        """For a person."""
        return self.missing.words if self.missing else f"this server has no such number ({self.source})"
