"""The way over SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.doctor.server import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw, Step, Way


class SqlWriter:
    """SET GLOBAL, read back."""

    kind = "sql"

    def __init__(self, target: Target, account: Account) -> None:
        raise NotImplementedError

    def prepare(self, way: Way, new: Sequence[Raw | None]) -> tuple[Step, ...]:
        """The steps."""
        raise NotImplementedError

    def read(self, step: Step) -> Raw:
        """What it is now."""
        raise NotImplementedError

    def write(self, step: Step) -> None:
        """Write ``step.new``."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up the connection."""
