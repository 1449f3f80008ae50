"""What a watch says: a line for each event, as text or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.diagnose.verdict import Verdict


class Teller:
    """Writes events with ``write``, each on a line of its own."""

    def __init__(
        self, write: Callable[[str], None], as_json: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self._write, self._as_json, self._clock = write, as_json, clock

    def tell(self, event: str, words: str, **more: Any) -> None:
        """One event: its name and what it is about for programs, words for a person."""
        now = self._clock()
        if self._as_json:
            told = {"at": round(now, 3), "event": event, "words": words, **more}
            self._write(sanitize.dumps(told))
        else:
            self._write(f"{time.strftime('%H:%M:%S', time.localtime(now))} {words}")


def first_finding(verdict: Verdict) -> str:
    """The worst of all, in words."""
    if not verdict.findings:
        return f"nothing wrong was found ({verdict.checked} of {verdict.rules} checks)"
    first = verdict.findings[0]
    return f"{first.title} [{first.name}, {first.score:.0f}]"
