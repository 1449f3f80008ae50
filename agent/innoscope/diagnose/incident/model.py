"""Define the records in an incident file. This module does no I/O and does not read the clock."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec evaluates the annotations
from dataclasses import dataclass, field
from typing import Any

from innoscope.diagnose.evidence import (  # noqa: TC001 - msgspec evaluates the annotations
    Evidence,
    MissingSource,
)


@dataclass(frozen=True, slots=True)
class CaptureOrigin:
    """The origin of an incident file: the user, the host and the time.

    ``innoscope`` is the version, ``by`` is the user on ``host``, ``kernel`` is the host's kernel release, and
    ``at`` is a Unix time.
    """

    innoscope: str
    by: str
    host: str
    kernel: str
    at: float


@dataclass(frozen=True, slots=True)
class Capture:
    """The contents of an incident file.

    - ``evidence`` was collected during the incident.
    - ``before`` is the recorder's evidence from before the stall. It is kept separate from ``evidence``, so
      that it does not dilute the signals of the stall.
    - ``verdict`` holds the findings at the time of the capture (docs/json.md, Diagnose). Readers of the file
      apply their own version of the rules.
    - ``status`` is the output of SHOW ENGINE INNODB STATUS, with literals and rows removed.
    - ``variables`` holds the server's variables, with secrets removed.
    - ``missing`` maps ``status`` or ``variables`` to the reason why it is missing.
    - ``trigger`` is the configured trigger that started the capture; None if a user requested it.
    """

    taken: CaptureOrigin
    evidence: Evidence
    before: Evidence | None = None
    verdict: Mapping[str, Any] = field(default_factory=dict)
    status: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    trigger: str | None = None
    missing: Mapping[str, MissingSource] = field(default_factory=dict)
