"""Convert a scrape to the documents of ``/api/status``. docs/live-page.md describes the keys."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.samples import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope.daemon.agent.collect import Scrape, ServerState
    from innoscope.metrics.merge import ExportedSeries

    _Values = Mapping[tuple[str, ...], float]

#: Gauges (without labels) in each server's document.
_NOW: Final = (
    "buffer_pool_pages", "buffer_pool_free_pages", "buffer_pool_data_pages", "buffer_pool_dirty_pages",
    "buffer_pool_dirty_ratio", "buffer_pool_dirty_limit_ratio", "checkpoint_age_bytes",
    "checkpoint_age_max_bytes", "checkpoint_age_ratio", "modified_age_ratio", "redo_full_seconds",
    "history_list_length",
    "mysqld_os_threads", "mysqld_resident_memory_bytes", "mysqld_start_time_seconds", "mysqld_stopped",
    "mysqld_traced", "connections", "connections_running", "connections_limit", "sql_up",
    "look_seconds", "probe_overhead_ratio", "probe_budget_ratio", "toggle_unfinished_changes",
)  # fmt: skip
_OWN: Final = {"own_cpu_seconds": "cpu_seconds", "own_resident_memory_bytes": "resident_bytes"}


class Numbers:
    """A scrape's finite numbers, by server and metric. The server name of Innoscope's own metrics is ""."""

    def __init__(self, series: Iterable[ExportedSeries]) -> None:
        self._values: dict[str, dict[str, dict[tuple[str, ...], float]]] = {}
        for one in series:
            if not isinstance(one.value, Histogram) and math.isfinite(one.value):
                values = self._values.setdefault(one.server, {}).setdefault(one.metric.name, {})
                values[one.labels] = one.value

    def of(self, server: str, metric: str) -> _Values:
        """Return a metric's values by labels; an empty mapping if there are none."""
        return self._values.get(server, {}).get(metric, {})

    def one(self, server: str, metric: str) -> float | None:
        """Return the value of a metric without labels; None if it is missing."""
        return self.of(server, metric).get(())


def servers(scrape: Scrape | None) -> list[dict[str, Any]]:
    """Return the document of each server, in the order of the scrape."""
    if scrape is None:
        return []
    numbers = Numbers(scrape.series)
    return [_server(state, numbers) for state in scrape.servers]


def own(scrape: Scrape | None) -> dict[str, dict[str, float]]:
    """Return the CPU time and memory of the agent and the sensor: ``{"agent": {"cpu_seconds": …, …}, …}``."""
    numbers = Numbers(scrape.series if scrape else ())
    costs: dict[str, dict[str, float]] = {}
    for metric, key in _OWN.items():
        for (process,), value in numbers.of("", metric).items():
            costs.setdefault(process, {})[key] = value
    return costs


def _server(state: ServerState, numbers: Numbers) -> dict[str, Any]:
    now = ((name, numbers.one(state.name, name)) for name in _NOW)
    attached = numbers.of(state.name, "probe_attached")
    threads: Counter[str] = Counter()
    for (wait, _), count in numbers.of(state.name, "threads").items():
        threads[wait] += int(count)
    return {
        "name": state.name,
        "what": state.what,
        "up": state.up,
        "collectors": [{"name": name, "ok": why is None, "why": why} for name, why in state.collectors],
        "toggles": list(_toggles(state.name, numbers)),
        "probes": {"attached": int(sum(attached.values())), "known": len(attached)},
        "threads": {wait: count for wait, count in threads.items() if count},
        "now": {name: value for name, value in now if value is not None},
    }


def _toggles(server: str, numbers: Numbers) -> Iterator[dict[str, Any]]:
    about = {toggle: (value, user) for toggle, value, user in numbers.of(server, "toggle_info")}
    since = numbers.of(server, "toggle_since_timestamp_seconds")
    until = numbers.of(server, "toggle_until_timestamp_seconds")
    for toggle, backend in numbers.of(server, "toggle_in_force"):
        value, user = about.get(toggle, ("", ""))
        yield {
            "toggle": toggle,
            "value": value,
            "way": backend,
            "who": user,
            "since": since.get((toggle,)),
            "until": until.get((toggle,)),
        }
