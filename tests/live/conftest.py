"""Live servers under known loads, and the figures that the tests took, printed at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live import figures
from live.observe import Observatory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def observatory() -> Iterator[Observatory]:
    """One server at a time, and what was seen of each."""
    observatory = Observatory()
    yield observatory
    observatory.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was measured, so that it can be quoted."""
    if not figures.lines:
        return
    figures.save()
    terminalreporter.section(f"measured on live servers ({figures.FILE})")
    for lines in figures.lines.values():
        for line in lines:
            terminalreporter.write_line(line)
