"""Count the latches that threads wait for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.sampling.latches import named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.diagnose.evidence import Evidence

#: Maximum number of latches to report.
_TOLD: Final = 3
#: Minimum share of the waiting threads for a latch to be reported.
_SHARE: Final = 0.1


def wanted(evidence: Evidence, waits: Iterable[str]) -> list[str]:
    """Return the latches that threads in these wait classes wait for.

    A line is, for example, ``78 % of them want a page (its block's lock), in buf_page_get_gen``.
    """
    classes = frozenset(waits)
    found: Counter[str] = Counter()
    for seen in evidence.seen:
        if seen.wait in classes:
            found[named(seen.functions)] += seen.count
    total = sum(found.values())
    return [
        f"{100 * count / total:.0f} % of them want {words}"
        for words, count in found.most_common(_TOLD)
        if words and count >= _SHARE * total
    ]
