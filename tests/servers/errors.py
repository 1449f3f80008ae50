"""What can go wrong with a test server, in one type so that a caller can print it as one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ServerError(RuntimeError):
    """A server could not be fetched, started or stopped. The message says what to do where we know it."""


def tail(path: Path, lines: int = 20) -> str:
    """What a log says went wrong, and its last lines, indented; empty when there is no log yet."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
    said = text.splitlines()
    wrong = [line for line in said[:-lines] if "[ERROR]" in line][-lines:]
    return "\n".join(f"    {line}" for line in wrong + said[-lines:])
