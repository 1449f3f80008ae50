"""The error type of the test servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ServerError(RuntimeError):
    """An error in fetching or running a test server. The message contains the remedy if it is known."""


def tail(path: Path, lines: int = 20) -> str:
    """Return the errors in a log and its last lines, indented; an empty string if there is no log yet."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    all_lines = text.splitlines()
    errors = [line for line in all_lines[:-lines] if "[ERROR]" in line][-lines:]
    return "\n".join(f"    {line}" for line in errors + all_lines[-lines:])
