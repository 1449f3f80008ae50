"""One gathering as a document: each server as it is now. docs/live-page.md has the keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope.daemon.agent.collect import Picture, ServerView
    from innoscope.metrics.merge import Series

    _Values = Mapping[tuple[str, ...], float]

#: Gauges without labels that are told.
_NOW: Final = (
    "buffer_pool_pages", "buffer_pool_free_pages", "buffer_pool_data_pages", "buffer_pool_dirty_pages",
    "buffer_pool_dirty_ratio", "buffer_pool_dirty_limit_ratio", "checkpoint_age_bytes",
    "checkpoint_age_max_bytes", "checkpoint_age_ratio", "redo_full_seconds", "history_list_length",
    "mysqld_os_threads", "mysqld_resident_memory_bytes", "mysqld_start_time_seconds", "mysqld_stopped",
    "mysqld_traced", "connections", "connections_running", "connections_limit", "sql_up",
    "look_seconds", "probe_overhead_ratio", "probe_budget_ratio", "toggle_unfinished_changes",
)  # fmt: skip
_OWN: Final = {"own_cpu_seconds": "cpu_seconds", "own_resident_memory_bytes": "resident_bytes"}


class Numbers:
    """The plain numbers of a gathering, by server and metric; those about ourselves under "" (no server)."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._found: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}
        for one in series:
            if not isinstance(one.value, Histogram) and math.isfinite(one.value):
                values = self._found.setdefault(one.server, {}).setdefault(one.metric.name, {})
                values[one.labels] = one.value

    def of(self, server: str, metric: str) -> _Values:
        """Values by labels; empty where nobody tells them."""
        return self._found.get(server, {}).get(metric, {})

    def one(self, server: str, metric: str) -> float | None:
        """Of a metric without labels."""
        return self.of(server, metric).get(())


def servers(picture: Picture | None) -> list[dict[str, Any]]:
    """All servers, in the order of the agent."""
    if picture is None:
        return []
    numbers = Numbers(picture.series)
    return [_server(view, numbers) for view in picture.servers]


def own(picture: Picture | None) -> dict[str, dict[str, float]]:
    """What our processes cost: ``{"agent": {"cpu_seconds": …, "resident_bytes": …}, "sensor": …}``."""
    numbers = Numbers(picture.series if picture else ())
    found: dict[str, dict[str, float]] = {}
    for metric, key in _OWN.items():
        for (process,), value in numbers.of("", metric).items():
            found.setdefault(process, {})[key] = value
    return found


def _server(view: ServerView, numbers: Numbers) -> dict[str, Any]:
    now = ((name, numbers.one(view.name, name)) for name in _NOW)
    attached = numbers.of(view.name, "probe_attached")
    return {
        "name": view.name,
        "what": view.what,
        "up": view.up,
        "collectors": [{"name": name, "ok": why is None, "why": why} for name, why in view.collectors],
        "toggles": list(_toggles(view.name, numbers)),
        "probes": {"attached": int(sum(attached.values())), "known": len(attached)},
        "threads": {wait: count for (wait,), count in numbers.of(view.name, "threads").items() if count},
        "now": {name: value for name, value in now if value is not None},
    }


def _toggles(server: str, numbers: Numbers) -> Iterator[dict[str, Any]]:
    about = {toggle: (value, who) for toggle, value, who in numbers.of(server, "toggle_info")}
    since = numbers.of(server, "toggle_since_timestamp_seconds")
    until = numbers.of(server, "toggle_until_timestamp_seconds")
    for toggle, way in numbers.of(server, "toggle_in_force"):
        value, who = about.get(toggle, ("", ""))
        yield {
            "toggle": toggle,
            "value": value,
            "way": way,
            "who": who,
            "since": since.get((toggle,)),
            "until": until.get((toggle,)),
        }
