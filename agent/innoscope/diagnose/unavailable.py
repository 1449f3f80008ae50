"""Define the error that is raised if a rule needs a value that is unavailable."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import MissingSource


class Unknown(Exception):
    """Raised if ``source`` has no value.

    ``missing`` is the reason; it is None if the server does not provide the value.
    """

    def __init__(self, source: str, missing: MissingSource | None) -> None:
        super().__init__(source)
        self.source = source
        self.missing = missing

    @property
    def words(self) -> str:
        """Return the reason as a message."""
        return self.missing.words if self.missing else f"this server does not have it ({self.source})"
