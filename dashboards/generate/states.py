"""Define the states of a server: its findings, or a worse state such as a server that does not answer.

``server:innoscope_state:score`` in dashboards/alerts/recording.yaml computes the same values for each server.
"""

from __future__ import annotations

from typing import Final

from generate.model import GREEN, ORANGE, RED, YELLOW, Bands
from generate.queries import level

#: States that a server can be in besides having findings.
SERVER: Final[Bands] = (
    (110, "no stacks", "purple"),
    (120, "traced", "dark-orange"),
    (220, "SQL does not answer", "dark-red"),
    (230, "stopped", "dark-red"),
    (240, "process has exited", "dark-red"),
    (250, "not reported", "dark-purple"),
)
STATES: Final[Bands] = (
    (0, "normal", GREEN),
    (1, "minor finding", YELLOW),
    (50, "finding", ORANGE),
    *SERVER[:2],
    (180, "severe finding", RED),  # a score of at least 80, plus 100
    *SERVER[2:],
)


def findings() -> str:
    """Return a query for the score of each finding, plus 100 if it is severe."""
    score = level("finding_score", by=("finding",), aggregate="max")
    return f"{score} + 100 * ({score} >= bool 80)"


def state() -> str:
    """Return a query for the worst state of the selected servers, without their findings."""
    return " or ".join(
        (
            f"240 + ({level('mysqld_up', aggregate='min')} == 0)",
            f"230 * ({level('mysqld_stopped', aggregate='max')} == 1)",
            f"220 + ({level('sql_up', aggregate='min')} == 0)",
            f"120 * ({level('mysqld_traced', aggregate='max')} == 1)",
            f"110 + ({level('findings_up', aggregate='min')} == 0)",
            f"0 * {level('sql_up', aggregate='min')}",
        )
    )
