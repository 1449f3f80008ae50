"""Write the events of a watch, one per line, as text or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from innoscope.common import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.diagnose.verdict import Verdict


class EventWriter:
    """Writes events, one per line."""

    def __init__(self, write: Callable[[str], None], as_json: bool) -> None:
        self._write, self._as_json = write, as_json

    def write(self, event: str, words: str, **more: Any) -> None:
        """Write one event: only the message ``words`` as text, or all arguments as JSON."""
        now = time.time()
        if self._as_json:
            record = {"at": round(now, 3), "event": event, "words": words, **more}
            self._write(sanitize.dumps(record))
        else:
            self._write(f"{time.strftime('%H:%M:%S', time.localtime(now))} {words}")


def worst_finding(verdict: Verdict) -> str:
    """Return one line about the worst finding, or a note that there are no findings."""
    if not verdict.findings:
        return f"nothing wrong was found ({verdict.checked} of {verdict.rules} checks)"
    first = verdict.findings[0]
    return f"{first.title} [{first.name}, {first.score:.0f}]"
