"""Define the data model of a dashboard; ``panels`` and ``frame`` convert it to Grafana's JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Kind = Literal["timeseries", "stat", "table", "heatmap", "state-timeline"]
#: Threshold steps: (lower bound, color). The lower bound of the first step is None.
Steps = tuple[tuple[float | None, str], ...]
#: States by value: (lower bound, label, color), in ascending order.
Bands = tuple[tuple[float, str, str], ...]

GREEN: Final = "green"
YELLOW: Final = "yellow"
ORANGE: Final = "orange"
RED: Final = "red"
BLUE: Final = "blue"


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel. ``legend`` names its series; tables do not use it."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Step:
    """A suggested next step: a dashboard (by uid), a command, a page in docs/, or the agent's live page."""

    dashboard: str = ""
    command: str = ""
    page: str = ""
    agent: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its field, heading and format."""

    field: str
    title: str
    unit: str = ""
    link: str = ""
    steps: Steps = ()
    bands: Bands = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel, whose description is composed of ``shows``, ``bad`` and ``then``.

    ``columns`` is only for tables. ``lines`` names the series that are limits, drawn dashed and not stacked.
    ``colors`` contains (series, color) pairs. ``bands`` replaces values by labels. A table is sorted by the
    columns with the headings ``sort``, the largest values first.
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
    bands: Bands = ()
    lines: tuple[str, ...] = ()
    colors: tuple[tuple[str, str], ...] = ()
    columns: tuple[Column, ...] = ()
    sort: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it, from left to right."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard. With ``one_server``, it initially shows one server of one agent, and cannot show all."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    one_server: bool = True
    tags: tuple[str, ...] = field(default=("innoscope", "mysql", "mariadb"))


def board(name: str) -> Step:
    """Return a step that opens another dashboard, identified by the last part of its uid."""
    return Step(dashboard=f"innoscope-{name}")


def run(command: str) -> Step:
    """Return a step that runs a command on the server's host."""
    return Step(command=command)


def read(page: str) -> Step:
    """Return a step that links to a page of the documentation."""
    return Step(page=page)


#: A step that opens the live page of the server's agent, which shows the stacks.
STACKS: Final = Step(agent=True)
