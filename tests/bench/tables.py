"""Format tables in Markdown for docs/performance.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format one table. The first two columns contain names, the others numbers."""
    rule = ["---", "---", *("---:" for _ in header[2:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def percent(share: float) -> str:
    """Format a share with its sign, in percent."""
    return f"{100 * share:+.1f} %"


def interval(low: float, high: float) -> str:
    """Format an interval of shares, in percent."""
    return f"[{100 * low:+.1f}, {100 * high:+.1f}]"
