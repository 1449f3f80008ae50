"""Records that make up an incident file. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.diagnose.evidence import Evidence, Missing


@dataclass(frozen=True, slots=True)
class Taken:
    """Who wrote the file, where and when.

    ``innoscope`` is the version, ``by`` a user of ``host``, ``kernel`` the host's kernel release, and ``at``
    a Unix time.
    """

    innoscope: str
    by: str
    host: str
    kernel: str
    at: float


@dataclass(frozen=True, slots=True)
class Capture:
    """The contents of an incident file.

    ``evidence`` was collected during the incident. ``before`` is the minute before the stall from the
    recorder; it is separate so that it does not dilute the signals. ``verdict`` has the findings at that time
    (docs/json.md, Diagnose); readers apply their own rules again. ``status`` is SHOW ENGINE INNODB STATUS
    without literals and rows, ``variables`` are the server's without secrets. ``missing`` has the reasons why
    ``status``, ``variables`` or ``before`` are missing. ``trigger`` is the text of the trigger that caused
    the capture; None if a user requested it.
    """

    taken: Taken
    evidence: Evidence
    before: Evidence | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)
    status: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    trigger: str | None = None
    missing: Mapping[str, Missing] = field(default_factory=dict)
