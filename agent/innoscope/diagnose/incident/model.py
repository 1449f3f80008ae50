"""What an incident file holds: plain records. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.diagnose.evidence import Evidence, Missing


@dataclass(frozen=True, slots=True)
class Taken:
    """Who took it, where and when.

    ``innoscope`` is the version that did, ``by`` a user of ``host``, whose kernel's release is ``kernel``;
    ``at`` is Unix time.
    """

    innoscope: str
    by: str
    host: str
    kernel: str
    at: float


@dataclass(frozen=True, slots=True)
class Capture:
    """All of one incident.

    ``evidence`` was gathered meanwhile; ``before`` is the minute before the stall as the recorder has it,
    apart from it so that it does not dilute the signals. ``verdict`` is what was said of it then
    (docs/json.md, Diagnose): who reads the file judges anew. ``status`` is SHOW ENGINE INNODB STATUS without
    literals and rows, ``variables`` are the server's without secrets. ``missing`` says why ``status``,
    ``variables`` or ``before`` are not there. ``trigger`` is the rule that took it, in words; None if a
    person did.
    """

    taken: Taken
    evidence: Evidence
    before: Evidence | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)
    status: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    trigger: str | None = None
    missing: Mapping[str, Missing] = field(default_factory=dict)
