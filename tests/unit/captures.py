"""Builders of captures for tests, and of random values of any type that a capture contains."""

from __future__ import annotations

import collections.abc
import types
import typing
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from innoscope.common.samples import Histogram
from innoscope.diagnose.evidence import ConnectionActivity, Evidence, MetricReadings, MissingSource
from innoscope.diagnose.incident.model import Capture, CaptureOrigin
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    import random

SERVER = {"flavour": "mysql", "version": "5.6.24", "pid": "42"}
WAITING = ("futex", "os_event_wait_low", "lock_wait_suspend_thread", "row_search_for_mysql", "do_command")
TAKEN = CaptureOrigin("0.1.0", "root", "db1", "6.18.0", 1_700_000_000.0)


def evidence(waits: dict[str, int], snapshots: int = 10, **values: Any) -> Evidence:
    """Return evidence with ``snapshots`` snapshots, one per second; ``waits`` counts clients by wait class.

    ``values`` maps each metric to one value for all snapshots, or to a list with one value per snapshot.
    """
    counts = {(CLIENT, wait): count for wait, count in waits.items()}
    each = [
        {key: value[number] if isinstance(value, list) else value for key, value in values.items()}
        for number in range(snapshots)
    ]
    return Evidence(
        SERVER,
        1000.0,
        1000.0 + snapshots,
        readings=tuple(MetricReadings(1000.0 + number, one) for number, one in enumerate(each)),
        snapshots=tuple(SnapshotSummary(1000.0 + number, counts) for number in range(snapshots)),
        seen=tuple(
            ObservedStack(CLIENT, wait, (*WAITING, wait), count * snapshots, (7,))
            for wait, count in waits.items()
        ),
        statements=(
            ConnectionActivity(7, "app", "web1", "Query", "updating", 3, "UPDATE `t` SET `a` = ?", 70),
        ),
        answers={
            "transactions": ({"connection": "7", "state": "LOCK WAIT", "seconds": "9", "rows_locked": "1"},)
        },
        host={"major_faults": 0.5},
        missing={"probes": MissingSource("unsupported", "left out by --no-probes")},
    )


def capture(**changes: Any) -> Capture:
    """Return the capture of a row lock convoy."""
    observed = evidence({"row_lock": 10, "idle": 3}, hist=Histogram((0, 3, 4), 99), connections=13)
    values: dict[str, Any] = {
        "taken": TAKEN,
        "evidence": observed,
        "verdict": {"findings": [{"name": "row_lock_convoy", "score": 88.5, "follows_from": None}]},
        "status": "TRANSACTIONS\n------------\nTrx id counter 7",
        "variables": {"innodb_buffer_pool_size": "134217728"},
        "missing": {"status": MissingSource("denied", "root lacks a privilege", "GRANT PROCESS")},
    }
    return Capture(**values | changes)


def drawn(hint: Any, draw: random.Random, depth: int = 0) -> Any:
    """Return a random value of the type ``hint``."""
    if is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        return hint(**{one.name: drawn(hints[one.name], draw, depth + 1) for one in fields(hint)})
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return drawn(draw.choice(arguments), draw, depth)
    if origin is tuple and arguments[-1] is not ...:
        return tuple(drawn(one, draw, depth + 1) for one in arguments)
    count = draw.randrange(4) if depth < 5 else draw.randrange(2)
    if origin is tuple:
        return tuple(drawn(arguments[0], draw, depth + 1) for _ in range(count))
    if origin is collections.abc.Mapping:
        key, value = arguments
        return {drawn(key, draw, depth + 1): drawn(value, draw, depth + 1) for _ in range(count)}
    return _SIMPLE[hint](draw)


_SIMPLE: dict[Any, Any] = {
    str: lambda draw: "".join(draw.choices("aÄ☃𝄞\n\t \"\\{[,:'", k=draw.randrange(9))),
    int: lambda draw: draw.choice((0, -1, 1, 1 << 53, (1 << 64) - 1, draw.randrange(1 << 40))),
    float: lambda draw: draw.choice((0.0, -0.5, 1e300, 5e-324, 0.1, float("inf"), draw.random() * 1e9, 7)),
    bool: lambda draw: draw.random() < 0.5,
    types.NoneType: lambda _: None,
    Any: lambda draw: draw.choice((None, True, 1, 2.5, "x", [1, [None]], {"a": {"b": []}})),
}
