"""Derive wait classes from the process list, for hosts on which stacks are unavailable."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from innoscope import _native
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.diagnose.evidence import ConnectionActivity

#: Commands of background and replication threads, which the process list also shows.
_NOT_CLIENTS: Final = frozenset(
    {"Daemon", "Binlog Dump", "Binlog Dump GTID", "Connect", "Slave_IO", "Slave_SQL"}
)
_ROW_LOCK: Final = "row_lock"
_OTHER: Final = "other"


class States(Entry, frozen=True):
    """The contents of states.yaml: wait classes by COMMAND, and by patterns of STATE."""

    version: Literal[1]
    commands: dict[str, str]
    states: dict[str, str]


@cache
def _catalog() -> States:
    return read_yaml(catalog_path("states.yaml"), States)


@cache
def _states() -> tuple[tuple[_native.Patterns, str], ...]:
    """Return the pattern and the wait class of each state in the catalog."""
    return tuple((_native.Patterns([state]), wait) for state, wait in _catalog().states.items())


@cache
def known_classes() -> frozenset[str]:
    """Return the wait classes that can be derived from the process list."""
    data = _catalog()
    return frozenset({*data.commands.values(), *data.states.values(), _ROW_LOCK})


def summary(
    at: float, statements: Iterable[ConnectionActivity], transactions: Iterable[Mapping[str, str]]
) -> SnapshotSummary:
    """Return a summary of the client threads, with wait classes derived from the process list."""
    waiting = {row["connection"] for row in transactions if row["state"] == "LOCK WAIT"}
    classes = Counter(
        _ROW_LOCK if str(one.connection) in waiting else _wait(one.command, one.state)
        for one in statements
        if one.command not in _NOT_CLIENTS
    )
    return SnapshotSummary(at, {(CLIENT, wait): count for wait, count in classes.items()})


def _wait(command: str, state: str) -> str:
    data = _catalog()
    if command in data.commands:
        return data.commands[command]
    return next((wait for patterns, wait in _states() if patterns.matches(state)), _OTHER)
