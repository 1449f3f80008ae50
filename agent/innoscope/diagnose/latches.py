"""Name the latches with the most waiting threads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.sampling.latches import named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.diagnose.evidence import Evidence

#: Maximum number of latches to report.
_TOLD: Final = 3
#: A latch is reported only if at least this share of the waiting threads are waiting for it.
_SHARE: Final = 0.1


def wanted(evidence: Evidence, waits: Iterable[str]) -> list[str]:
    """Return lines about the latches that threads in ``waits`` are waiting for.

    Example: ``78 % of them wait for a page (its block's lock), in buf_page_get_gen``.
    """
    classes = frozenset(waits)
    found: Counter[str] = Counter()
    for seen in evidence.seen:
        if seen.wait in classes:
            found[named(seen.functions)] += seen.count
    total = sum(found.values())
    return [
        f"{100 * count / total:.0f} % of them wait for {words}"
        for words, count in found.most_common(_TOLD)
        if words and count >= _SHARE * total
    ]
