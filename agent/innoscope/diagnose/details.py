"""Lines of evidence that contain names and messages, which signals cannot express."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose import replication_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import Evidence

#: Functions that return the lines, by the value of ``details`` in a rule. They may raise Unknown.
DETAILS: Final[Mapping[str, Callable[[Evidence], list[str]]]] = {
    "replication_errors": replication_threads.errors,
}
