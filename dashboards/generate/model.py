"""Data model of a dashboard; ``panels`` and ``frame`` convert it to Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["timeseries", "stat", "table", "heatmap"]
#: Threshold steps: (from, color), the first one's ``from`` is None.
Steps = tuple[tuple[float | None, str], ...]

GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; ``legend`` names its series, or its column in a table."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Step:
    """A next step for the reader: a dashboard (uid), a command, a page in docs/, or the agent's page."""

    dashboard: str = ""
    command: str = ""
    page: str = ""
    agent: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its field, its heading, and its format."""

    field: str
    title: str
    unit: str = ""
    link: str = ""
    steps: Steps = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. ``shows``, ``bad`` and ``then`` become its description.

    ``columns`` are for tables; ``lines`` are series drawn as dashed lines and not stacked (limits);
    ``colors`` are those of series; ``names`` are texts for values, each with a color.
    """

    title: str
    kind: Kind
    unit: str
    queries: tuple[Query, ...]
    shows: str
    bad: str
    then: tuple[Step, ...]
    width: int = 8
    height: int = 8
    stacked: bool = False
    most: float | None = None
    least: float | None = 0
    steps: Steps = ()
    names: tuple[tuple[int, str, str], ...] = ()
    lines: tuple[str, ...] = ()
    colors: tuple[tuple[str, str], ...] = ()
    columns: tuple[Column, ...] = ()
    sort: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, placed from left to right."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. With ``one_server`` it shows one server of one agent at a time."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    one_server: bool = True
    tags: tuple[str, ...] = field(default=("innoscope", "mysql", "mariadb"))


def board(name: str) -> Step:
    """Return a step to another dashboard, by the last part of its uid."""
    return Step(dashboard=f"innoscope-{name}")


def run(command: str) -> Step:
    """Return a step that runs a command on the server's host."""
    return Step(command=command)


def read(page: str) -> Step:
    """Return a step to a page of the documentation."""
    return Step(page=page)


#: A step to the live page of the server's agent, which has its stacks.
STACKS: Final = Step(agent=True)
